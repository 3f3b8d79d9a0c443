"""How a gang ends: with its ranks, with its engine, in time, or not at all.

The engine is a stand-in and its members are threads, so that every order can be had.
"""

import contextlib
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.launch import gang
from harness.launch.gang import Engine, Gang, GangPlan, RunningGang
from harness.run.trial_tree import GangTree, run_tree
from harness.trial import rank_file
from harness.trial.process_tree import MARKER
from harness.trial.rank_file import FirstExit

LONGEST_SEC = 30.0


class Members(Engine):
    """Members that send what a test says, each over a connection of its own."""

    def __init__(self, made, acts, code):
        self.code = code
        self.num_cancels = 0
        self.connections = []
        port = made.variables[gang.ADDRESS_VARIABLE].rpartition(":")[2]
        secret = made.variables[gang.SECRET_VARIABLE]
        for place, act in enumerate(acts):
            connection = gang.connect(f"127.0.0.1:{port}", secret)
            self.connections.append(connection)
            own = {"member": ("worker", place)}
            gang.send(connection, **own, place=place, host=f"n{place}")
            if act is not None:
                gang.send(connection, **own, **act)

    def poll(self):
        return self.code

    def cancel(self):
        self.num_cancels += 1

    def output(self):
        return "\nsaid by the engine\n"


class Launcher:
    def __init__(self, *acts, code=None, refusal=""):
        self.acts = [*acts]
        self.code = code
        self.refusal = refusal
        self.engine = None

    def __call__(self, gang):
        if self.refusal:
            raise LaunchError(self.refusal)
        self.engine = Members(gang, self.acts, self.code)
        return self.engine


@pytest.fixture
def running(tmp_path):
    GangPlan(
        members=(("worker", 0), ("worker", 1), ("ps", 0)),
        cpusets=((0,), (0,), (0,)),
        num_ranks=2,
        members_per_host=1,
        variables={"ROLES": "workers"},
    ).write(tmp_path)

    def start(launcher):
        made = RunningGang(launcher, tmp_path, {"A": "b"}, ("python",))
        made.start()
        return made

    return start


def ended(code, tail=""):
    return {"exit_code": code, "tail": tail}


def test_a_gang_ends_with_its_ranks(running):
    launcher = Launcher(ended(0), ended(0), None)
    made = running(launcher)
    made.wait(LONGEST_SEC)
    assert launcher.engine is not None
    serving = launcher.engine.connections[2]
    made.end()
    made.end()

    assert 0 == made.exit_code
    assert () == made.output
    with contextlib.suppress(ConnectionResetError):
        assert b"" == serving.recv(1)  # which ends it
    assert launcher.engine.num_cancels


def test_a_signal_is_the_cause_and_not_who_lost_the_rank(running, tmp_path):
    """Also when the other one was the first to report."""
    made = running(Launcher(ended(1, "lost rank 1"), ended(-signal.SIGSEGV), None))
    made.wait(LONGEST_SEC)
    made.end()

    assert -signal.SIGSEGV == made.exit_code
    assert FirstExit(rank=1) == rank_file.read_first_exit(tmp_path)
    assert "-- process 0 on n0:\nlost rank 1" in made.output


def test_others_have_a_grace_period(running, tmp_path, monkeypatch):
    monkeypatch.setattr(gang, "GRACE_SEC", 0.5)
    made = running(Launcher(None, ended(3), None))
    start = time.monotonic()
    made.wait(LONGEST_SEC)
    made.end()

    assert 0.5 <= time.monotonic() - start < LONGEST_SEC
    assert 3 == made.exit_code
    assert FirstExit(rank=1) == rank_file.read_first_exit(tmp_path)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (None, "or its host failed"),
        (137, "or its host failed"),
        (-signal.SIGTERM, "failed; the engine's own client ended with signal SIGTERM"),
        (-64, "failed; the engine's own client ended with signal SIGRTMAX"),
        (-99, "failed; the engine's own client ended with signal 99"),
    ],
)
def test_a_rank_whose_connection_is_lost_was_killed(running, tmp_path, code, end):
    """Of a client that was killed all are lost; it also fails when they are killed."""
    launcher = Launcher(ended(1), None, None, code=code)
    made = running(launcher)
    assert launcher.engine is not None
    launcher.engine.connections[1].close()
    made.wait(LONGEST_SEC)
    made.end()

    reason = rank_file.read_first_exit(tmp_path).reason
    assert -signal.SIGKILL == made.exit_code
    assert "connection to process 1 on host 'n1' was lost" in reason
    assert reason.endswith(end)


def test_a_gang_that_runs_for_too_long_has_no_exit_code(running):
    """The time limit is the harness's own."""
    made = running(Launcher(None, None, None))

    with pytest.raises(subprocess.TimeoutExpired):
        made.wait(0.3)
    made.end()

    assert made.exit_code is None


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (Launcher(refusal="no partition 'gpu'"), r"^no partition 'gpu'$"),
        (Launcher(None, {"refused": "node n1 lacks core 9"}, None), r"^node n1 lacks"),
        (
            Launcher(None, None, None, code=137),
            r"^the engine ended with exit code 137 before all ranks .*: said by the",
        ),
        (Launcher(None, None, None, code=gang.REFUSED), r"^said by the engine$"),
    ],
)
def test_what_never_ran_is_refused(running, tmp_path, monkeypatch, launcher, reason):
    """No rank has failed, and the record has the reason."""
    monkeypatch.setattr(gang, "_SETTLE_SEC", 0.1)
    made = running(launcher)
    made.wait(LONGEST_SEC)
    made.end()
    found = rank_file.read_first_exit(tmp_path)

    assert gang.REFUSED == made.exit_code
    assert found.rank is None
    with pytest.raises(LaunchError, match=reason):
        raise LaunchError(found.reason)


def test_reports_after_the_end_of_the_engine_count(running, monkeypatch):
    """They can be on their way when its client has ended."""
    monkeypatch.setattr(gang, "_SETTLE_SEC", LONGEST_SEC)
    launcher = Launcher(ended(0), None, None, code=0)
    made = running(launcher)
    assert launcher.engine is not None
    late = launcher.engine.connections[1]
    report = threading.Timer(
        0.3, lambda: gang.send(late, member=("worker", 1), **ended(0))
    )
    report.start()
    made.wait(LONGEST_SEC)
    made.end()

    assert 0 == made.exit_code


@pytest.mark.usefixtures("running")
def test_the_record_of_a_failure_has_the_output(tmp_path):
    launcher = Launcher(ended(0), ended(3, "no paper"), None)
    planned = RunningGang(launcher, tmp_path, {}, ("python",))
    tree = GangTree(planned, tmp_path, {MARKER: str(tmp_path)}, lambda _: None)
    trial_exit = run_tree(tree, timeout_sec=LONGEST_SEC)

    assert 3 == trial_exit.exit_code
    assert (
        "-- process 1 on n1:\nno paper\n\nsaid by the engine\n"
        == (tmp_path / "stderr.log").read_text()
    )


def test_a_gang_is_what_its_client_reads():
    """As a line of JSON, since its variables are for nobody's eyes."""
    made = Gang(
        trial_dir=Path("/runs/a"),
        members=(("worker", 0), ("ps", 0)),
        members_per_host=1,
        command=("python", "-m", "x y"),
        variables={"A": "é\n"},
    )

    assert 1 == made.to_json().count(b"\n")
    assert made == Gang.from_json(made.to_json())
