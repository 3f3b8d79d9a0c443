"""How a gang ends: with its ranks, with its engine, in time, or not at all."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import slurm_cluster
from command_lines import smoke_sweep
from damaging import until

from harness import ExitCode, LaunchError
from harness.launch import gang
from harness.launch.gang import ClientEngine, Engine, Gang, RunningGang
from results import Store, TrialStatus

LONGEST_SEC = 30.0
SWEEP = smoke_sweep(
    "--backends=multi_worker --replicas=2 --mode=weak --repeats=1 --no-match "
    "--budget=none --order=sequential --launcher=slurm"
)


@pytest.mark.processes
def test_a_trial_of_two_hosts_and_what_its_failure_says(
    harness, overrides, tmp_path, tmp_path_factory, monkeypatch
):
    """In an allocation of two nodes."""
    slurm_cluster.install_stand_ins(tmp_path_factory.mktemp("slurm"), monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")

    def sweep(study):
        code, _, err = harness(*SWEEP, f"--study={study}", overrides=overrides)
        (trial,) = Store.open(tmp_path / "runs" / study).trials()
        folder = tmp_path / "runs" / study / "trials" / trial.trial_id
        return code, err, trial, (folder / "stderr.log").read_text()

    code, err, trial, _ = sweep("good")

    assert ExitCode.OK == code, err
    assert TrialStatus.OK is trial.status.status, trial.status.failure
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    monkeypatch.setenv("FAKE_BEHAVIOR", "multi_worker:2:rank1_exit3")
    code, err, trial, said = sweep("bad")

    assert ExitCode.NOTHING_MEASURED == code, err
    assert "exit code 3" in trial.status.failure.reason
    assert re.search(r"-- process 1 on \S+:\nlibfoo: cannot open shared object", said)


class Members(Engine):
    """Members that send what a test says, each over a connection of its own."""

    def __init__(self, *acts, code=None, refusal="", strangers=()):
        self.acts, self.refusal, self.strangers = acts, refusal, strangers
        self.code = code  # of the engine
        self.num_cancels, self.connections = 0, []

    def __call__(self, made):
        if self.refusal:
            raise LaunchError(self.refusal)
        address = gang.with_host(made.variables[gang.ADDRESS_VARIABLE], "127.0.0.1")
        for data in self.strangers:
            gang.connect(address, "guess").sendall(data)
        for place, act in enumerate(self.acts):
            connection = gang.connect(address, made.variables[gang.SECRET_VARIABLE])
            self.connections.append(connection)
            gang.send(connection, place=place, host=f"n{place}")
            if act is not LOST and act is not None:
                gang.send(connection, **act)
            if act is LOST or act == WELL:  # who has reported may go
                connection.close()
        return self

    def poll(self):
        return self.code

    def cancel(self):
        self.num_cancels += 1

    def output(self):
        return "\nsaid by the engine\n"


def ended(code, tail="", **more):
    return {"exit_code": code, "tail": tail, **more}


LOST, WELL = "lost", ended(0)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts two ranks, or more, and a server."""
    core = min(os.sched_getaffinity(0))

    def run(members, num_ranks=2):
        workers = [("worker", index) for index in range(num_ranks)]
        planned = Gang(
            trial_dir=tmp_path,
            members=(*workers, ("ps", 0)),
            cpusets=((core,), *((4095,) for _ in workers[1:]), (core,)),
            num_ranks=num_ranks,
            members_per_host=1,
            variables={},
        )
        made = RunningGang(members, planned)
        made.start()
        return made

    return run


BY_SIGNAL = "failed; the engine's own client ended with signal SIGTERM$"
KILLED = r"^the connection to process 1 on host 'n1' was lost: it was killed, or its ho"
ENDINGS = {
    "well": (Members(WELL, WELL, None), 0, None),
    "by a signal, which is the cause, and not who lost the rank": (
        Members(ended(1, "lost rank 1"), ended(-signal.SIGSEGV), None),
        *(-signal.SIGSEGV, (1, "^$")),
    ),
    "by an error, and the other has a grace period": (
        Members(None, ended(3), None),
        *(3, (1, "^$")),
    ),
    "by a lost connection, since the engine was killed": (
        Members(ended(1), LOST, None, code=-signal.SIGTERM),
        *(-signal.SIGKILL, (1, f"{KILLED}st {BY_SIGNAL}")),
    ),
    "before it began": (
        Members(refusal="no partition 'gpu'"),
        *(gang.REFUSED, (None, r"^no partition 'gpu'$")),
    ),
    "since a member is refused": (
        Members(None, {"refused": "node n1 lacks core 9"}, None),
        *(gang.REFUSED, (None, r"^node n1 lacks")),
    ),
    "with its engine": (
        Members(None, None, None, code=137),
        *(
            gang.REFUSED,
            (None, r"^the engine .* code 137 before all ranks .*: said by"),
        ),
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_gang_ends(start, tmp_path, monkeypatch, how):
    members, code, cause = ENDINGS[how]
    monkeypatch.setattr(gang, "GRACE_SEC", 0.3)
    monkeypatch.setattr(gang, "_SETTLE_SEC", 0.1)
    begun = time.monotonic()
    made = start(members)
    made.wait(LONGEST_SEC)
    assert ("grace" in how) <= (0.3 <= time.monotonic() - begun)
    made.end()
    made.end()

    assert code == made.exit_code
    assert (cause is None) == (made.output == ())
    if cause is not None:
        rank, reason = cause
        found = json.loads((tmp_path / "first_exit.json").read_text())
        assert rank == found["rank"]
        assert re.search(reason, found["reason"])
    if "not who lost the rank" in how:
        assert "-- process 0 on n0:\nlost rank 1" in made.output
    if members.connections:
        assert members.num_cancels
        with contextlib.suppress(ConnectionResetError):
            assert b"" == members.connections[2].recv(1)  # which ends it


@pytest.mark.parametrize(
    ("bad", "said", "cause"),
    [
        ({2: 1, 0: 1}, (), 2),  # the first that ended
        ({1: 3, 0: 1}, (0, 1), 1),  # whatever its number
        ({0: 1, 1: -9}, (), 1),  # a kill explains the others
        ({0: 1, 2: -11, 1: -9}, (1, 2), 2),  # the first of them
        ({0: 1, 1: 3}, (0,), 1),  # the other one only lost it
        ({0: 1, 1: 3, 2: -9}, (0,), 2),
    ],
)
def test_the_cause_is_the_first_kill_or_the_first_end_without_a_word(
    start, tmp_path, monkeypatch, bad, said, cause
):
    for rank in said:
        line = '{"kind": "failure", "exception_type": "WorkerLostError"}\n'
        (tmp_path / f"rank_{rank}.jsonl").write_text(line)
    members = Members(None, None, None, None)
    made = start(members, num_ranks=3)
    for rank, code in bad.items():
        gang.send(members.connections[rank], **ended(code))
        while rank not in made._exits.ends:
            made._exits.read(LONGEST_SEC)
    monkeypatch.setattr(gang, "GRACE_SEC", 0.0)  # of those that have not ended
    made.wait(LONGEST_SEC)
    made.end()

    assert bad[cause] == made.exit_code
    assert cause == json.loads((tmp_path / "first_exit.json").read_text())["rank"]


STRANGERS = [
    b'{"place": 1, "host": "n1"}\n{"exit_code": 0, "tail": ""}\n',
    b'{"refused": "nothing works here"}\n',
    b"[]\n",
]


def test_strangers_are_not_believed(start):
    made = start(Members(WELL, None, None, strangers=STRANGERS))
    with pytest.raises(psutil.TimeoutExpired):
        made.wait(0.3)
    made.end()

    assert made.exit_code is None  # also where a gang runs for too long


def test_reports_after_the_end_of_the_engine_count(start, monkeypatch):
    monkeypatch.setattr(gang, "_SETTLE_SEC", LONGEST_SEC)
    members = Members(WELL, None, None, code=0)
    made = start(members)
    late, report = members.connections[1], ended(3, oom_kills=2)
    threading.Timer(0.3, gang.send, [late], report).start()
    made.wait(LONGEST_SEC)
    made.end()

    assert (3, 2) == (made.exit_code, made.num_oom_kills)


@pytest.mark.parametrize(
    ("own", "folder", "message"),
    [
        (("worker", 0), "other", r"cannot read the trial in .* --runs-dir on a"),
        (("worker", 1), "", r"is placed on \[4095\]; ask for whole hosts .*same"),
        (("worker", 2), "", r"started worker 2, but the trial has 3 processes"),
    ],
)
def test_a_member_that_cannot_run_says_why(start, tmp_path, own, folder, message):
    start(Members()).end()
    with pytest.raises(LaunchError, match=message) as caught:
        gang._own(tmp_path / folder, own)

    assert "\n" not in str(caught.value)


RUN = """
import pathlib, socket, sys
from harness.launch import gang
here, there = socket.socketpair()
folder = pathlib.Path(sys.argv[1])
gang._run(sys.argv[3:], [int(sys.argv[2])], folder / "log", folder, here)
"""
WAITS_FOR_ITS_PARENT = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
print("end of input", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_member(tmp_path, number):
    core, program = str(min(os.sched_getaffinity(0))), WAITS_FOR_ITS_PARENT
    started = subprocess.Popen(
        [
            *(sys.executable, "-c", RUN, str(tmp_path), core),
            *(sys.executable, "-c", program),
        ]
    )
    log = tmp_path / "log"
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    process = psutil.Process(int(log.read_text()))
    assert psutil.STATUS_ZOMBIE != process.status()
    started.send_signal(number)
    started.wait(timeout=60)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(timeout=60)

    assert not process.is_running()


PYTHON = (sys.executable, "-S", "-c")
READS = "import sys; print(sys.stdin.readline(), flush=True); sys.stdin.read()"
STAYS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.{});"
    " print('gang', flush=True); time.sleep(60)"
)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "message", "ends_sec", "code"),
    [
        (READS, "gang\n", LONGEST_SEC, 0),
        (STAYS.format("SIG_DFL"), None, 0.2, -signal.SIGTERM),
        (STAYS.format("SIG_IGN"), None, 0.2, -signal.SIGKILL),
    ],
)
def test_the_client_of_an_engine_ends_when_it_is_to_end(
    tmp_path, program, message, ends_sec, code
):
    engine = ClientEngine(
        (*PYTHON, program),
        trial_dir=tmp_path,
        variables={},
        log="client.log",
        hint="install it",
        end_by_itself_sec=ends_sec,
        message=message,
    )
    until(engine.output)

    assert engine.poll() is None
    engine.cancel()
    engine.cancel()
    assert code == engine.poll()
    assert "gang" == engine.output().strip()
