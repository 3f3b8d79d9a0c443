"""Programs that do not do what was asked: one line each, and nothing left behind."""

import concurrent.futures
import re

import fork_server
import psutil
import pytest
from command_lines import overridden

import reports
from harness import main
from harness.client import scaling_client
from results import Evidence, Store, TrialStatus

pytestmark = pytest.mark.processes

GOOD = "for k in range(8): print('rate', 10 + k, flush=True); time.sleep(0.01)"
OK, FAILED, TIMEOUT = TrialStatus.OK, TrialStatus.FAILED, TrialStatus.TIMEOUT
SLOW = "time.sleep(987)"
NOT_REGULAR = "it is not a regular file"
IS_LINK = "it is a symbolic link"
IS_HUGE = "268435457 bytes, at most 268435456 are read"
LEFT = (
    ("rank_0.jsonl", "folder", "(path / 'x').mkdir(parents=True)", NOT_REGULAR),
    ("rank_0.jsonl", "pipe", "os.mkfifo(path)", NOT_REGULAR),
    ("status.json", "folder", "(path / 'x').mkdir(parents=True)", NOT_REGULAR),
    ("status.json", "link", "path.symlink_to('/no/such')", IS_LINK),
    ("spec.json", "link", "path.symlink_to('/no/such')", IS_LINK),
    ("env.json", "folder", "path.mkdir()", NOT_REGULAR),
    ("result.json", "folder", "path.mkdir()", NOT_REGULAR),
    ("samples_1.png", "huge file", "open(path, 'w').truncate(2**28 + 1)", IS_HUGE),
)
"""What a program leaves in the place of a record: its name, what, how, and why not."""


def leaving(name, make, then=GOOD):
    path = f"pathlib.Path(os.environ['REPLICATOR_HARNESS_TRIAL'], {name!r})"
    lines = ("import pathlib", f"path = {path}", "path.unlink(missing_ok=True)")
    return "\n".join((*lines, make, then))


BELONGS = (
    "and a record of the trial belongs there; let the program write into another folder"
)
BINARY = "path.write_bytes(bytes(range(256)))"
ONE_PIECE = r"numbers came in one piece"
PROGRAMS = {
    "good": (GOOD, Evidence.WINDOW, ""),
    "exits": (
        "print('rate 3'); sys.stderr.write('no data\\n'); sys.exit(3)",
        FAILED,
        r"exited with code 3 after it had printed 1 number; its last line: 'no data'",
    ),
    "hangs": (
        f"subprocess.Popen(['sleep', '987']); {SLOW}",
        TIMEOUT,
        r"killed after 6 s \(timeout\): the command had printed no numbers; look at",
    ),
    "prints nothing": (
        "print('speed 3')",
        FAILED,
        r"no line that it printed matches --metric '.*; its last line: 'speed 3'",
    ),
    "begins at zero": (f"print('rate 0.0', flush=True)\n{GOOD}", Evidence.WINDOW, ""),
    "ends at zero": (
        f"{GOOD}\nprint('rate 0.0')",
        FAILED,
        r"the line 'rate 0.0' has 0, which is not a rate or a time",
    ),
    "matches twice": (
        f"print('rate 3 rate 4', flush=True); {SLOW}",
        FAILED,
        r"the pattern of --metric matches 2 times in the line 'rate 3 rate 4'",
    ),
    "is killed": (
        "os.kill(os.getpid(), 9)",
        FAILED,
        r"SIGKILL .*counted no .* kills: the command had printed no numbers",
    ),
    # With another session and without the environment by which it could be found.
    "leaves a process behind": (
        f"{GOOD}\nsubprocess.Popen(['sleep', '988'], env={{}}, start_new_session=True)",
        Evidence.WINDOW,
        r"1 process outlived the command and were ended; let it wait for what it",
    ),
    "floods": (
        f"{GOOD}\nprint(('x' * 99 + '\\n') * 70_000)",
        Evidence.WINDOW,
        r"it printed \d+\.\d MiB/s, and reading that takes time",
    ),
    "does not flush": (
        "sys.stdout.write(''.join(f'rate {k + 1}\\n' for k in range(8)))",
        Evidence.ROWS,
        f"{ONE_PIECE} with the one before, .*; let the program flush",
    ),
    "prints six": (GOOD.replace("8", "6"), Evidence.WINDOW, ""),
    "prints five": (
        GOOD.replace("8", "5"),
        Evidence.LAST,
        r"it printed 5 numbers, and 3 are warm-up: fewer than 3 are left",
    ),
    "prints once": (
        "print('rate 5')",
        Evidence.LAST,
        r"it printed 1 number, and 3 are warm-up: .* the last one alone counts",
    ),
    "names its machine": (
        "sys.exit('gpu-box-7: saw gpu-box-7.corp.example, not gpu-box-70; a runner')",
        FAILED,
        r"its last line: '\*\*\*: saw \*\*\*, not gpu-box-70; a runner'$",
    ),
    "has no name": ("sys.exit('on localhost')", FAILED, "line: 'on localhost'$"),
    "changes its spec": (leaving("spec.json", BINARY), Evidence.WINDOW, ""),
    "removes its spec": (leaving("spec.json", ""), Evidence.WINDOW, ""),
    "leaves a result and fails": (
        leaving("result.json", BINARY, "sys.exit('no data')"),
        FAILED,
        r"exited with code 1; its last line: 'no data'",
    ),
    "leaves binary observations": (
        leaving("rank_0.jsonl", BINARY),
        FAILED,
        r"^rank_0\.jsonl: 'utf-8' codec can't decode byte 0x80",
    ),
    **{
        f"leaves a {kind} {name}": (
            leaving(name, make),
            FAILED,
            rf"^{name}: {why}, {BELONGS} \(it is kept as 'left-\w+-{name}'\)$",
        )
        for name, kind, make, why in LEFT
    },
}
"""Each with its status, or the evidence of one that counts, and what is said of it."""
CANNOT = "--command cannot be started: "
COMMANDS = {
    "no-such-program": f"{CANNOT}'no-such-program': No such file .*; give a program th",
    "./script": rf"{CANNOT}'\./script': Exec format error; begin a script with '#!/bi",
    "echo rate 7": r"printed 1 number, but 3 of warm-up and 5",
}
WRITES = """
import itertools, time
with open("rows.csv", "w", buffering=1) as file:
    print("step,rate", file=file)
    for step in itertools.count():
        time.sleep(0.03)
        print(f"{step},{7 + step}", file=file)
"""
QUANTITIES = {
    "throughput": lambda number: 8 / number,
    "throughput_per_replica": lambda number: 8 / (2 * number),
    "step_time": lambda number: number,
    "step_time_ms": lambda number: number / 1000,
}
"""The seconds of a global batch of 8 on 2 replicas, by what a number is."""
# Each number in several lines of a file that nobody sees grow.
ENDS = """
import json
json.dump([{"rate": 9 + step} for step in range(6)], open("out.json", "w"), indent=1)
"""
WORDS = """
import os, sys
print("rate 5", os.environ.get("PYTHONPATH"), *sys.argv, sep="\\n")
"""
SLEEPS = ("987", "988")
# Whose processes are looked for, or ended: the other trials are forked.
STARTED = ("hangs", "is killed", "leaves a process behind", "writes for ever")
ALONE = ("words", "has no name")
"""What runs where something else is different."""


def _refuse():
    raise KeyError("getpwuid(): uid not found: 1234")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    root = tmp_path_factory.mktemp("programs")
    sweeps = {}
    for name, (text, _, _) in PROGRAMS.items():
        path = root / f"{name.replace(' ', '_')}.py"
        path.write_text(f"import os, subprocess, sys, time\n{text}\n")
        sweeps[name] = (f"python3 {path.name} {{replicas}}",)
    (root / "script").write_text("echo rate 7\n")
    (root / "script").chmod(0o755)
    for name, text in (("writes", WRITES), ("ends", ENDS), ("words", WORDS)):
        (root / f"{name}.py").write_text(text)
    for command in (*COMMANDS, "yes 'rate 7'"):
        sweeps[command] = command, "--steps=3+5"
    metric = "--metric=throughput=csv:rows.csv:rate"
    sweeps["writes for ever"] = "python3 writes.py", "--steps=3+5", metric
    for name in QUANTITIES:
        options = ("--steps=3+5", f"--metric={name}=rate (.*)", "--replicas=2")
        sweeps[name] = "python3 good.py {replicas}", *options
    metric = "--metric=throughput=json:out.json:rate"
    sweeps["writes at its end"] = "python3 ends.py", metric
    words = "'{output_dir}/a b' --n={replicas} {{literal}} {own}"
    for name in ("words", "words without a path"):
        sweeps[name] = f"python3 words.py {words}", f'--param=own=it\'s "{name}"'
    usual = (
        *("--metric=throughput=rate (\\S+)", "--unit=runs", "--replicas=1"),
        *("--per-replica-batch-size=4", "--mode=weak", "--repeats=1", "--timeout=6s"),
    )
    studies = {name: f"study-{number}" for number, name in enumerate(sweeps)}
    overrides = {"canary": lambda _core: 0.2, "count_oom_kills": lambda: 7}

    def run(name):
        command, *options = sweeps[name]
        words = overridden(usual, *options, f"--study={studies[name]}")
        main(("sweep", f"--command={command}", *words), run_overrides=overrides)

    with (
        pytest.MonkeyPatch.context() as patch,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        patch.chdir(root)
        patch.setattr(reports, "write_report", lambda *_: None)
        patch.setattr(reports, "print_summary", lambda *_: None)
        patch.setattr("socket.gethostname", lambda: "gpu-box-7.corp.example")
        patch.setattr("getpass.getuser", lambda: "runner")
        hanging, *started = (pool.submit(run, name) for name in STARTED)
        concurrent.futures.wait(started)
        with fork_server.installed():
            patch.setenv("PYTHONPATH", "/a:/b")
            run("words")
            patch.delenv("PYTHONPATH")
            list(pool.map(run, sweeps.keys() - {*STARTED, *ALONE}))
            hanging.result()
            patch.setattr("socket.gethostname", lambda: "localhost")
            patch.setattr("getpass.getuser", _refuse)
            run("has no name")
    stores = {name: Store.open(root / "runs" / of) for name, of in studies.items()}
    return {name: next(iter(store.trials())) for name, store in stores.items()}


@pytest.mark.parametrize("name", [*PROGRAMS, *COMMANDS])
def test_a_program_has_its_status_and_one_line(ran, name):
    _, expected, message = PROGRAMS.get(name, ("", FAILED, COMMANDS.get(name)))
    trial = ran[name]
    if trial.status.failure is None:
        assert expected == trial.result.readings.evidence
        said = trial.result.readings.remarks
    else:
        assert expected == trial.status.status
        said = [trial.status.failure.reason]

    assert bool(message) == any(re.search(message, line) for line in said), said
    assert all("\n" not in line for line in said)


def test_nothing_is_left_behind(ran):
    del ran
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or ["", ""])[1:] in [[sec] for sec in SLEEPS]
    ]

    assert [] == left
    assert [] == [p for p in psutil.Process().children() if _is_of_a_trial(p)]


def _is_of_a_trial(process):
    try:
        return scaling_client.TRIAL_VARIABLE in process.environ()
    except psutil.Error:
        return False


def test_numbers_become_the_record(ran):
    result = ran["good"].result

    assert (0.4, 4 / 11, 4 / 12) == result.ranks[0].warmup_step_time_sec
    assert tuple(4 / rate for rate in range(13, 18)) == result.ranks[0].step_time_sec
    assert 5 == result.num_measured_steps
    assert 5 * 4 / sum(4 / r for r in range(13, 18)) == pytest.approx(
        result.examples_per_sec
    )
    assert 8 == result.readings.num_readings
    assert result.ranks[0].peak_memory_bytes > 2**20


@pytest.mark.parametrize(
    ("name", "num_warmup"),
    [
        *(("prints six", 3), ("prints five", 4), ("prints once", 0)),
        *(("does not flush", 3), ("writes at its end", 3)),
    ],
)
def test_evidence_follows_from_when_numbers_came(ran, name, num_warmup):
    result = ran[name].result

    assert num_warmup == len(result.ranks[0].warmup_step_time_sec)
    if "its end" in name:
        assert (Evidence.ROWS, ()) == (
            result.readings.evidence,
            result.readings.remarks,
        )


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_number_stands_for_the_time_of_a_global_batch(ran, name):
    times = ran[name].result.ranks[0].step_time_sec

    assert times == pytest.approx([QUANTITIES[name](rate) for rate in range(13, 18)])


def test_rows_of_a_file_are_timed_and_counted_while_it_is_written(ran):
    trial = ran["writes for ever"]
    rank = trial.result.ranks[0]

    assert OK is trial.status.status
    assert Evidence.WINDOW is trial.result.readings.evidence
    assert tuple(4 / rate for rate in range(10, 15)) == rank.step_time_sec
    assert 0.1 < (rank.window_end_ns - rank.window_start_ns) / 1e9


def test_a_program_ends_when_it_has_printed_enough(ran):
    assert OK is ran["yes 'rate 7'"].status.status
    assert 5 == ran["yes 'rate 7'"].result.num_measured_steps


@pytest.fixture
def printed(ran, tmp_path_factory):
    def read(name):
        (path,) = tmp_path_factory.getbasetemp().glob(
            f"programs0/runs/*/trials/{ran[name].trial_id}/stdout.log"
        )
        return path.read_bytes()

    return read


def test_a_value_with_spaces_or_quotation_marks_is_one_word(printed):
    _, path, _, folder, *words = printed("words").decode().splitlines()

    assert folder.endswith("/output/a b")
    assert ["--n=1", "{literal}", 'it\'s "words"'] == words
    # Our packages are first in the path of its parent, and not in its own.
    assert "/a:/b" == path
    assert "None" == printed("words without a path").decode().splitlines()[1]


def test_output_has_limits(printed):
    text = printed("floods")

    assert 4 * 2**20 < len(text) < 4.2 * 2**20
    assert b"bytes left out" in text
    assert text.endswith(b"x" * 99 + b"\n\n")
