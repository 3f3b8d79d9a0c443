"""Members and programs of engines start, report and end in time, and no strangers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hung import until

from harness.errors import LaunchError
from harness.launch import gang, member
from harness.launch.gang import ClientEngine, GangPlan, MemberExits

LONGEST_SEC = 30.0


def engine_client(trial_dir, code, **options):
    return ClientEngine(
        (sys.executable, "-S", "-c", code),
        trial_dir=trial_dir,
        variables={},
        log="client.log",
        hint="install it",
        **{"end_by_itself_sec": LONGEST_SEC, **options},
    )


@pytest.mark.processes
def test_a_client_that_reads_ends_when_it_is_to_end(tmp_path):
    code = "import sys; print(sys.stdin.readline(), flush=True); sys.stdin.read()"
    engine = engine_client(tmp_path, code, message=b"gang\n")
    until(engine.output)

    assert engine.poll() is None
    engine.cancel()
    assert 0 == engine.poll()
    assert "gang" == engine.output().strip()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("on_sigterm", "code"), [("SIG_DFL", -signal.SIGTERM), ("SIG_IGN", -signal.SIGKILL)]
)
def test_a_client_that_does_not_end_is_killed(tmp_path, on_sigterm, code):
    program = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.{on_sigterm});"
        " print('ready', flush=True); time.sleep(60)"
    )
    engine = engine_client(tmp_path, program, end_by_itself_sec=0.2)
    until(engine.output)
    engine.cancel()
    engine.cancel()

    assert code == engine.poll()


def test_a_client_that_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(LaunchError, match=r"cannot run /no/srun: No such .*; install"):
        ClientEngine(
            ("/no/srun",),
            trial_dir=tmp_path,
            variables=os.environ,
            log="client.log",
            hint="install it",
            end_by_itself_sec=1.0,
        )


@pytest.fixture
def exits():
    with contextlib.closing(MemberExits()) as made:
        yield made


@pytest.fixture
def connect(exits):
    """Returns a function that connects a member, or a stranger with another secret."""

    def run(secret=None):
        port = exits.address.rpartition(":")[2]
        return gang.connect(f"127.0.0.1:{port}", secret or exits.secret)

    return run


def read(exits):
    for _ in range(5):
        exits.read(0.02)


def test_an_exit_is_recorded_by_place(exits, connect):
    connection = connect()
    gang.send(connection, member=("worker", 1), place=1, host="n1")
    gang.send(
        connection,
        member=("worker", 1),
        exit_code=3,
        tail="no such file",
        oom_kills=2,
    )
    read(exits)

    assert {1: 3} == exits.codes
    assert {1: 2} == exits.oom_kills
    assert ["-- process 1 on n1:\nno such file"] == exits.texts()


def test_a_lost_connection_is_the_end_of_a_member(exits, connect):
    connection = connect()
    gang.send(connection, member=("worker", 0), place=0, host="n0")
    read(exits)
    connection.close()
    read(exits)

    assert {0: -signal.SIGKILL} == exits.codes
    assert (
        "process 0 on host 'n0' was lost: it was killed, or its host" in exits.lost[0]
    )


def test_an_exit_that_was_reported_is_not_a_loss(exits, connect):
    """Members close the connection after they have reported."""
    connection = connect()
    gang.send(connection, member=("worker", 0), place=0, host="n0")
    gang.send(connection, member=("worker", 0), exit_code=0, tail="")
    connection.close()
    read(exits)

    assert {0: 0} == exits.codes
    assert {} == exits.lost


@pytest.mark.parametrize(
    "data",
    [
        b'{"secret": "guess"}\n{"exit_code": 0, "place": 0, "tail": ""}\n',
        b"GET / HTTP/1.0\r\n\r\n",
        b"[]\n",
        b"\xff\n",
        b"x" * (gang.MAX_LINE_BYTES + 10),
    ],
)
def test_strangers_are_not_believed(exits, connect, data):
    """Anybody can connect to a port; the secret is what counts."""
    stranger = connect(secret="guess")
    stranger.sendall(data)
    genuine = connect()
    gang.send(genuine, member=("worker", 0), place=0, host="n0")
    gang.send(genuine, member=("worker", 0), exit_code=0, tail="")
    read(exits)

    assert {0: 0} == exits.codes
    assert [] == exits.refused


def test_closing_ends_the_members(exits, connect):
    """They read the end of the connection, at once."""
    connection = connect()
    read(exits)
    exits.close()
    started = time.monotonic()

    assert b"" == connection.recv(1)
    assert time.monotonic() - started < 1


def test_a_member_uses_the_address_that_its_engine_knows():
    """The name of a host can mean its loopback address on another one."""
    environ = {gang.ADDRESS_VARIABLE: "n0:77", "OF_THE_ENGINE": "10.0.0.1"}
    by_engine = {gang.HOST_IN_VARIABLE: "OF_THE_ENGINE"}

    assert "10.0.0.1:77" == gang.own_address(environ | by_engine)
    assert "n0:77" == gang.own_address(environ)
    assert "n0:77" == gang.own_address({gang.ADDRESS_VARIABLE: "n0:77"} | by_engine)


@pytest.fixture
def trial_dir(tmp_path):
    """Returns the directory of a trial of two workers, one on a core that exists."""
    core = min(os.sched_getaffinity(0))
    GangPlan(
        members=(("worker", 0), ("worker", 1)),
        cpusets=((core,), (4095,)),
        num_ranks=2,
        members_per_host=1,
        variables={},
    ).write(tmp_path)
    return tmp_path


def test_a_member_knows_its_place_and_cores(trial_dir):
    assert (0, (min(os.sched_getaffinity(0)),)) == member._own(trial_dir, ("worker", 0))


@dataclasses.dataclass(frozen=True)
class Refusal:
    own: tuple[str, int]
    folder: str
    message: str


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(("worker", 0), "other", r"cannot read the trial in .* --runs-dir on a"),
        Refusal(
            ("worker", 1), "", r"is placed on \[4095\]; ask for whole hosts .*same"
        ),
        Refusal(("worker", 2), "", r"started worker 2, but the trial has 2 processes"),
    ],
)
def test_a_member_that_cannot_run_says_why(trial_dir, refusal):
    """In one line, with the host and what to do."""
    with pytest.raises(LaunchError, match=refusal.message) as caught:
        member._own(trial_dir / refusal.folder, refusal.own)

    assert "\n" not in str(caught.value)


RUN = """
import pathlib, socket, sys
from harness.launch import member
here, there = socket.socketpair()
folder = pathlib.Path(sys.argv[1])
cores = [int(sys.argv[2])]
code = member._run(sys.argv[3:], cores, folder / "log", folder, here)
print(code)
"""
SAYS_WHAT_IT_HAS = """
import json, os
print(json.dumps({
    "cores": sorted(os.sched_getaffinity(0)),
    "is_leader": os.getsid(0) == os.getpid(),
    "tmpdir": os.environ["TMPDIR"],
}))
raise SystemExit(3)
"""
WAITS_FOR_ITS_PARENT = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
print("end of input", flush=True)
"""


def start_member(folder, *command):
    core = str(min(os.sched_getaffinity(0)))
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), core, *command],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.processes
def test_a_member_starts_its_process_on_its_cores(tmp_path):
    started = start_member(tmp_path, sys.executable, "-c", SAYS_WHAT_IT_HAS)
    out, _ = started.communicate(timeout=60)

    assert ["3"] == out.split()
    assert {
        "cores": [min(os.sched_getaffinity(0))],
        "is_leader": True,
        "tmpdir": str(tmp_path),
    } == json.loads((tmp_path / "log").read_text())


@pytest.mark.processes
def test_a_program_that_cannot_be_run_is_named(tmp_path):
    out, _ = start_member(tmp_path, "/no/python", "-m").communicate(timeout=60)

    assert ["127"] == out.split()
    assert "cannot run /no/python: [Errno 2] No such" in (tmp_path / "log").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_member(tmp_path, number):
    """However that ends; before, its standard input was open."""
    started = start_member(tmp_path, sys.executable, "-c", WAITS_FOR_ITS_PARENT)
    log = tmp_path / "log"
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    process = psutil.Process(int(log.read_text()))
    assert psutil.STATUS_ZOMBIE != process.status()
    started.send_signal(number)
    started.communicate(timeout=60)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(timeout=60)

    assert not process.is_running()
