"""What a trial ended as, from what its ranks and its processes have left."""

import json
import threading

import pytest
from command_lines import install, overridden, smoke_sweep

from results import Phase, Store, TrialStatus

__all__ = ["install"]

pytestmark = pytest.mark.processes
SECOND = 1_000_000_000
SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1 --mode=weak --order=sequential --no-match "
    "--budget=none --steps=2+4 --per-replica-batch-size=8 --study=s"
)
# Leaves what a folder has, and ends as a script there says.
WORKER = """
n=$(cat "$LEFT/next"); echo $((n + 1)) > "$LEFT/next"
cp -R "$LEFT/$n/." "$0/"; . "$0/end.sh"
"""


def lines(*fields):
    return "".join(json.dumps(line) + "\n" for line in fields)


TWO = {"kind": "client", "num_ranks": 2}


def rank(*, start=0, step=1, num_steps=6, without=()):
    """Returns a complete rank file; the first step is at ``start`` seconds."""
    steps = []
    for index in range(num_steps):
        phase = ("first_step", "warmup", "measure")[min(index, 2)]
        begin = (start + index * step) * SECOND
        times = {"start_ns": begin, "end_ns": begin + step * SECOND}
        said = {"kind": "step", "phase": phase, "index": index, "loss": 1}
        steps.append(said | times)
    facts = {"num_parameters": 5, "example_unit": "images", "global_batch_size": 8}
    facts = {"kind": "facts", **facts, "flops_per_example": 600}
    made = [
        *(TWO, {name: facts[name] for name in facts if name not in without}),
        {"kind": "first_step_done", "time_to_first_step_sec": 3.0},
        *steps,
        {"kind": "memory", "peak_memory_bytes": 7, "method": "faked"},
        {"kind": "peak", "flops_per_sec": 2e9, "method": "of bfloat16"},
        {"kind": "phase", "phase": "report", "ns": 0},
        {"kind": "done", "ns": 0},
    ]
    return lines(*(line for line in made if line["kind"] not in without))


@pytest.fixture
def conclude(harness, overrides, tmp_path, monkeypatch):
    """Returns a function that sweeps trials that leave texts of ranks and other files.

    Each is these texts, a command that ends it, other files, and the kills that the
    kernel counts meanwhile.
    """

    def run(*endings):
        kills = []
        for number, (ranks, end, *more) in enumerate(endings):
            files, count = (*more, *({}, 0)[len(more) :])
            kills += [None if count is None else 0, count]
            folder = tmp_path / "left" / str(number)
            folder.mkdir(parents=True)
            names = {f"rank_{k}.jsonl": text for k, text in enumerate(ranks)}
            for name, text in {**names, **files, "end.sh": f"{end}\n"}.items():
                (folder / name).write_text(text)
        (tmp_path / "left" / "next").write_text("0")
        monkeypatch.setenv("LEFT", str(tmp_path / "left"))
        counts = iter(kills)
        changes = {"worker_command": ("/bin/sh", "-c", WORKER)}
        changes["count_oom_kills"] = lambda: next(counts)
        words = (*SWEEP, f"--repeats={len(endings)}")
        _, _, err = harness(*words, overrides=overrides | changes)
        found = [*Store.open(tmp_path / "runs" / "s").trials()]
        assert len(endings) == len([of for of in found if of.status is not None]), err
        return sorted(found, key=lambda trial: trial.spec.repetition_index)

    return run


WELL, BAD = "exit 0", "exit 1"


def test_the_window_is_from_latest_start_to_latest_end(conclude):
    unknown = rank(without=("peak", "flops_per_example"))
    made, plain = conclude(
        ([rank(), rank(start=1, step=2)], WELL), ([unknown, unknown], WELL)
    )

    # Rank 0 measures from 2 to 6 s, rank 1 from 5 to 13 s.
    assert 13.0 - 5.0 == made.result.window_sec
    assert 8 * 4 / 8.0 == made.result.examples_per_sec
    assert [4, 4] == [len(each.step_time_sec) for each in made.result.ranks]
    for of, expected in ((made, (600, 2e9)), (plain, (None, None))):
        first = of.result.ranks[0]
        assert expected == (of.result.flops_per_example, first.peak_flops_per_sec)


def test_numbers_of_one_rank_are_not_enough(conclude):
    short, missing = conclude(([rank(), rank(num_steps=5)], WELL), ([rank()], WELL))

    for made, phase, reason in (
        (short, Phase.REPORT, "rank 1 has steps [0, 1, 2, 3, 4], expected 0 to 5"),
        # A failure names the rank that got least far.
        (missing, Phase.LAUNCH, "rank 1 was in phase launch"),
    ):
        assert (TrialStatus.FAILED, None) == (made.status.status, made.result)
        assert phase is made.status.failure.phase
        assert reason in made.status.failure.reason


FAR = """
from harness.launch.launchers import Launcher

class Far(Launcher):
    name, summary, num_hosts = "far", "two hosts", 2

    def start(self, options):
        return self

LAUNCHER = Far()
"""
RANK = """
case $TF_CONFIG in *'"index": 0'*) cp "$LEFT/rank_0.jsonl" "$0" ;; esac
exit $CODE
"""


def test_a_rank_file_that_appears_late_is_waited_for(
    harness, overrides, install, tmp_path, monkeypatch
):
    """A network file system shows what another host wrote after a while."""
    install("far", FAR, launchers={"far": "far:LAUNCHER"})
    (tmp_path / "rank_0.jsonl").write_text(rank())
    monkeypatch.setenv("LEFT", str(tmp_path))
    options = ("--backends=multi_worker", "--replicas=2", "--per-replica-batch-size=4")
    words = overridden(SWEEP, *options, "--repeats=1")

    def canary(_core):
        for path in tmp_path.glob("runs/late/trials/*/rank_0.jsonl"):
            late = path.with_name("rank_1.jsonl")  # their processes have ended
            threading.Timer(0.2, late.write_text, [rank()]).start()
        return 0.2

    def run(study, late_sec, code=0):
        monkeypatch.setenv("CODE", str(code))
        changes = {"worker_command": ("/bin/sh", "-c", RANK), "canary": canary}
        options = (*overridden(words, f"--study={study}"), "--launcher=far")
        changes |= {"late_sec": late_sec}
        _, _, err = harness(*options, overrides=overrides | changes)
        assert (tmp_path / "runs" / study).exists(), err
        (trial,) = Store.open(tmp_path / "runs" / study).trials()
        assert trial.status is not None, err
        return trial.status

    missing = run("missing", 0.2)
    assert TrialStatus.FAILED is missing.status
    assert 0.2 <= missing.duration_sec < 30
    assert run("bad", 60.0, code=1).duration_sec < 30
    made = run("late", 20.0)
    assert TrialStatus.OK is made.status, made.failure


DONE = '{"kind": "done", "ns": 1}\n'
BROKEN = ("{", '{"kind": "wat"}', '{"kind": "step"}', "[]")


def test_a_broken_rank_file_is_a_failure_not_a_crash(conclude):
    reasons = {
        "what\n": "rank_0.jsonl line 1",
        **{f"{DONE}{of}\n": "rank_0.jsonl line 2 is malformed" for of in BROKEN},
        '{"kind": "failure", "phase": "lunch"}\n': "rank 0 recorded a malformed fail",
    }
    trials = conclude(*(([text], BAD) for text in reasons))

    for trial, reason in zip(trials, reasons.values(), strict=True):
        assert reason in trial.status.failure.reason


SEGV, KILL, ABRT = (f"kill -{name} $$" for name in ("SEGV", "KILL", "ABRT"))
LOST, NO_TRIAL = "the connection was lost", "host 'a' cannot read the trial"


def test_the_first_rank_that_ended_is_named(conclude):
    launch = {"kind": "phase", "phase": "launch", "ns": 1}
    build = launch | {"phase": "build"}
    ranks = [lines(TWO, launch), lines(launch, build)]
    rows = (
        # Although the other one was further behind.
        ((1, ""), SEGV, "build", "signal SIGSEGV: rank 1 was in phase build"),
        (None, SEGV, "launch", "signal SIGSEGV: rank 0 was in phase launch"),
        # A lost host is not taken for the kernel's out-of-memory killer.
        ((1, LOST), KILL, "build", f"{LOST}: rank 1 was in phase build"),
        # Where the engine, or a host, refused, no rank is blamed.
        ((None, NO_TRIAL), "exit 78", "launch", NO_TRIAL),
    )
    endings = []
    for first, end, *_ in rows:
        text = first and json.dumps({"rank": first[0], "reason": first[1]})
        endings.append((ranks, end, {"first_exit.json": text} if text else {}))

    for trial, (first, _, phase, reason) in zip(conclude(*endings), rows, strict=True):
        failure = trial.status.failure
        assert TrialStatus.FAILED is trial.status.status
        assert phase == failure.phase.value
        assert failure.reason.endswith(reason)
        is_engine = first is not None and first[1]
        assert bool(is_engine) == (failure.exception_type == "LaunchError")


GRAPH = "Graph execution error:"
NCCL = (
    "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO for details). Last error:"
    " Cuda failure 2 'out of memory'"
)


def test_a_failed_allocation_is_out_of_memory(conclude):
    memory = (
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[9,9]"),
        ("InternalError", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        ("InternalError", "Failed to create cuDNN: CUDNN_STATUS_ALLOC_FAILED"),
        ("InternalError", NCCL),
        ("InternalError", "failed to allocate 2.50GiB (26 bytes) from device"),
    )
    others = (  # More memory would not help.
        ("InternalError", "CUDNN_STATUS_EXECUTION_FAILED"),
        ("InternalError", "NCCL: unhandled system error (run with NCCL_DEBUG"),
        ("InternalError", "failed to allocate a port"),
    )
    fields = {
        "kind": "failure",
        "phase": "first_step",
        "exception_type": "InternalError",
    }
    endings = [([lines({**fields, "reason": NCCL})], BAD)]
    for kind, message in (*memory, *others):
        fields |= {"exception_type": kind, "reason": GRAPH}
        fields["traceback"] = f"{GRAPH}\n\n{message}"
        endings.append(([lines(fields)], BAD))
    found = [trial.status.status for trial in conclude(*endings)]

    assert [TrialStatus.OUT_OF_MEMORY] * 6 + [TrialStatus.FAILED] * 3 == found


# A sparse log of 1 TiB, at the end of which are words.
LOG = 'truncate -s 1T "$0/stderr.log"; cat "$0/words" >> "$0/stderr.log"; '
CUDNN = "F0000 cuda_dnn.cc:1234] failed: CUDNN_STATUS_ALLOC_FAILED\n"


def test_a_process_that_was_killed_says_what_is_known(conclude):
    rows = (
        (KILL, "", 2, "out_of_memory", "the kernel counted 2 out-of-memory kills"),
        (KILL, "", 0, "failed", "unknown: the kernel counted no out-of-memory ki"),
        (KILL, "", None, "failed", "unknown: its control group does not count"),
        # Some libraries abort where they cannot allocate; the log has their last words.
        (ABRT, CUDNN, 0, "out_of_memory", "SIGABRT"),
    )
    endings = [
        ([], LOG + end, {"words": f"{text}the last words\n"}, count)
        for end, text, count, *_ in rows
    ]

    for trial, (*_, status, said) in zip(conclude(*endings), rows, strict=True):
        made = trial.status
        assert TrialStatus(status) is made.status
        assert Phase.LAUNCH is made.failure.phase
        assert said in made.failure.reason
        assert "the last words" in made.failure.traceback


def test_a_failure_that_is_no_text_is_a_failure_all_the_same(conclude):
    failure = {"kind": "failure", "phase": "build", "traceback": "\0"}
    reasons = ("bad \ud800 \0 end", "", 7, None, "x" * 900)
    endings = (([lines({**failure, "reason": of})], BAD) for of in reasons)

    for trial in conclude(*endings):
        assert TrialStatus.FAILED is trial.status.status
        assert trial.status.failure.reason.isprintable()
        assert len(trial.status.failure.reason) <= 500
