"""What a trial ended as, from what its ranks and its processes have left."""

import json
import signal
import threading
import time

import pytest

from harness.run import aggregate, trial_tree
from results import Failure, Phase, TrialStatus

SECOND = 1_000_000_000


def write_lines(folder, rank, *lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank_{rank}.jsonl").write_text(text)


def write_rank(folder, rank, *, start=0, step=1, num_steps=6):
    """Writes a complete rank file; the first step is at ``start`` seconds."""
    steps = []
    for index in range(num_steps):
        phase = ("first_step", "warmup", "measure")[min(index, 2)]
        begin = (start + index * step) * SECOND
        times = {"start_ns": begin, "end_ns": begin + step * SECOND}
        said = {"kind": "step", "phase": phase, "index": index, "loss": 1}
        steps.append(said | times)
    facts = {"num_parameters": 5, "example_unit": "images", "global_batch_size": 8}
    write_lines(
        *(folder, rank, {"kind": "facts"} | facts),
        {"kind": "first_step_done", "time_to_first_step_sec": 3.0},
        *steps,
        {"kind": "memory", "peak_memory_bytes": 7, "method": "faked"},
        {"kind": "phase", "phase": "report", "ns": 0},
        {"kind": "done", "ns": 0},
    )


@pytest.fixture
def conclude(tmp_path, make_spec):
    def run(exit_code=0, num_oom_kills=0, num_ranks=2, **fields):
        ended = trial_tree.TrialExit(exit_code=exit_code, num_oom_kills=num_oom_kills)
        return aggregate.conclude(
            "0" * 20, make_spec(), tmp_path, ended, num_ranks=num_ranks, **fields
        )

    return run


def test_the_window_is_from_latest_start_to_latest_end(tmp_path, conclude):
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, start=1, step=2)
    result = conclude().result

    # Rank 0 measures from 2 to 6 s, rank 1 from 5 to 13 s.
    assert 13.0 - 5.0 == result.window_sec
    assert 8 * 4 / 8.0 == result.examples_per_sec
    assert [4, 4] == [len(rank.step_time_sec) for rank in result.ranks]


@pytest.mark.parametrize(
    ("num_steps", "phase", "reason"),
    [
        (5, Phase.REPORT, "rank 1 has steps [0, 1, 2, 3, 4], expected 0 to 5"),
        # A failure names the rank that got least far.
        (None, Phase.LAUNCH, "rank 1 was in phase launch"),
    ],
)
def test_numbers_of_one_rank_are_not_enough(
    tmp_path, conclude, num_steps, phase, reason
):
    write_rank(tmp_path, 0)
    if num_steps:
        write_rank(tmp_path, 1, num_steps=num_steps)
    made = conclude()

    assert (TrialStatus.FAILED, None) == (made.status, made.result)
    assert phase is made.failure.phase
    assert reason in made.failure.reason


def test_a_rank_file_that_appears_late_is_waited_for(tmp_path, conclude, monkeypatch):
    """A network file system shows what another host wrote after a while."""
    monkeypatch.setattr(aggregate, "_LATE_PERIOD_SEC", 0.05)
    write_rank(tmp_path, 0)
    start = time.monotonic()
    missing = conclude(late_sec=0.2)
    assert TrialStatus.FAILED is missing.status
    assert 0.2 <= time.monotonic() - start < 10
    conclude(exit_code=1, late_sec=60.0)
    assert time.monotonic() - start < 20

    late = threading.Timer(0.2, write_rank, (tmp_path, 1))
    late.start()
    made = conclude(late_sec=20.0)
    late.join()
    assert TrialStatus.OK is made.status


DONE = '{"kind": "done", "ns": 1}\n'
BROKEN = ("{", '{"kind": "wat"}', '{"kind": "step"}', "[]")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("what\n", "rank_0.jsonl line 1"),
        *((f"{DONE}{line}\n", "rank_0.jsonl line 2 is malformed") for line in BROKEN),
        (None, "rank_0.jsonl: it is not a regular file"),
        ('{"kind": "failure", "phase": "lunch"}\n', "rank 0 recorded a malformed fail"),
    ],
)
def test_a_broken_rank_file_is_a_failure_not_a_crash(tmp_path, conclude, text, reason):
    path = tmp_path / "rank_0.jsonl"
    path.mkdir() if text is None else path.write_text(text)
    made = conclude(1, num_ranks=1)

    assert reason in made.failure.reason


@pytest.mark.parametrize(
    ("first", "exit_code", "phase", "reason"),
    [
        # Although the other one was further behind.
        (
            {"rank": 1, "reason": ""},
            -11,
            "build",
            "signal SIGSEGV: rank 1 was in phase build",
        ),
        (None, -11, "launch", "signal SIGSEGV: rank 0 was in phase launch"),
        # A lost host is not taken for the kernel's out-of-memory killer.
        (
            *({"rank": 1, "reason": "the connection was lost"}, -9, "build"),
            "the connection was lost: rank 1 was in phase build",
        ),
        # Where the engine, or a host, refused, no rank is blamed.
        (
            *({"rank": None, "reason": "host 'a' cannot read the trial"}, 78, "launch"),
            "host 'a' cannot read the trial",
        ),
    ],
)
def test_the_first_rank_that_ended_is_named(
    tmp_path, conclude, first, exit_code, phase, reason
):
    phases = [{"kind": "phase", "phase": name, "ns": 1} for name in ("launch", "build")]
    write_lines(tmp_path, 0, phases[0])
    write_lines(tmp_path, 1, *phases)
    if first is not None:
        (tmp_path / "first_exit.json").write_text(json.dumps(first))
    made = conclude(exit_code)

    assert TrialStatus.FAILED is made.status
    assert phase == made.failure.phase.value
    assert made.failure.reason.endswith(reason)
    is_engine = first is not None and first["reason"]
    assert bool(is_engine) == (made.failure.exception_type == "LaunchError")


GRAPH = "Graph execution error:"
NCCL = (
    "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO for details). Last error:"
    " Cuda failure 2 'out of memory'"
)


@pytest.mark.parametrize(
    ("exception_type", "message", "is_memory"),
    [
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[9,9]", True),
        ("InternalError", "CUDA_ERROR_OUT_OF_MEMORY: out of memory", True),
        ("InternalError", "Failed to create cuDNN: CUDNN_STATUS_ALLOC_FAILED", True),
        ("InternalError", NCCL, True),
        ("InternalError", "failed to allocate 2.50GiB (26 bytes) from device", True),
        # More memory would not help.
        ("InternalError", "CUDNN_STATUS_EXECUTION_FAILED", False),
        ("InternalError", "NCCL: unhandled system error (run with NCCL_DEBUG", False),
        ("InternalError", "failed to allocate a port", False),
    ],
)
def test_a_failed_allocation_is_out_of_memory(exception_type, message, is_memory):
    for reason in (GRAPH, message):
        failure = Failure(
            phase=Phase.FIRST_STEP,
            reason=reason,
            exception_type=exception_type,
            traceback=f"{GRAPH}\n\n{message}",
        )

        assert is_memory is aggregate.is_out_of_memory(failure)


@pytest.mark.parametrize(
    ("number", "count", "status", "said"),
    [
        (
            signal.SIGKILL,
            2,
            "out_of_memory",
            "the kernel counted 2 out-of-memory kills",
        ),
        (
            signal.SIGKILL,
            0,
            "failed",
            "unknown: the kernel counted no out-of-memory ki",
        ),
        (signal.SIGKILL, None, "failed", "unknown: its control group does not count"),
        # Some libraries abort where they cannot allocate; the log has their last words.
        (signal.SIGABRT, 0, "out_of_memory", "SIGABRT"),
    ],
)
def test_a_process_that_was_killed_says_what_is_known(
    tmp_path, conclude, number, count, status, said
):
    with (tmp_path / "stderr.log").open("wb") as log:
        log.seek(2**40)
        if number == signal.SIGABRT:
            log.write(b"F0000 cuda_dnn.cc:1234] failed: CUDNN_STATUS_ALLOC_FAILED\n")
        log.write(b"the last words\n")
    made = conclude(-number, count, num_ranks=1)

    assert TrialStatus(status) is made.status
    assert Phase.LAUNCH is made.failure.phase
    assert said in made.failure.reason
    assert "the last words" in made.failure.traceback


@pytest.mark.parametrize("reason", ["bad \ud800 \0 end", "", 7, None, "x" * 900])
def test_a_failure_that_is_no_text_is_a_failure_all_the_same(
    tmp_path, conclude, reason
):
    failure = {"kind": "failure", "phase": "build", "reason": reason, "traceback": "\0"}
    write_lines(tmp_path, 0, failure)
    found = conclude(1, num_ranks=1)

    assert TrialStatus.FAILED is found.status
    assert found.failure.reason.isprintable()
    assert len(found.failure.reason) <= 500
