"""One owner of a study, on one machine and on several that do not share their locks."""

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from damaging import elsewhere, until

import results
from results import lock_study

OWNER = """
import contextlib, pathlib, sys, time
import damaging, results
root, name, start = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with damaging.elsewhere(name) if name else contextlib.nullcontext():
    study = results.lock_study(root)
    while time.time() < start:
        pass
    try:
        with study:
            print("held", flush=True)
            sys.stdin.read()
    except results.StudyInUseElsewhereError:
        print("refused", flush=True)
"""
HEARTBEAT = ".lock-heartbeat"


def start_owner(root, machine="", start=0.0):
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), machine, str(start)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def is_own(root):
    """Whether the file of the owner names this process."""
    return (root / HEARTBEAT).read_text().split()[1] == str(os.getpid())


def is_heartbeat(descriptor):
    path = pathlib.Path(f"/proc/self/fd/{descriptor}").readlink()
    return path.name == HEARTBEAT


def left_in(root):
    return sorted(path.name for path in root.glob(f"{HEARTBEAT}*"))


def refused(root, error, message=None):
    """Returns the error with which a study is not given to this process."""
    with pytest.raises(error, match=message) as found, lock_study(root):
        pytest.fail("it was given")
    return found.value


@pytest.mark.processes
def test_second_process_is_refused_with_the_pid_and_a_kill_frees(tmp_path):
    with start_owner(tmp_path) as owner:
        assert owner.stdout.readline() == "held\n"
        message = rf"is in use by process {owner.pid}: wait until it ends"
        refusal = refused(tmp_path, results.StudyLockedError, message)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()

    assert owner.pid == refusal.pid
    with lock_study(tmp_path):
        assert is_own(tmp_path)


def test_one_process_cannot_hold_it_twice(tmp_path):
    with lock_study(tmp_path):
        refused(tmp_path, results.StudyLockedError, f"process {os.getpid()}")
        assert (tmp_path / HEARTBEAT).exists()

    assert not (tmp_path / HEARTBEAT).exists()
    with lock_study(tmp_path):
        pass


def test_a_study_is_written_while_another_thread_takes_one(tmp_path, make, monkeypatch):
    (trial, *_), names = make().trials(), ("own", "other", "of a thread")
    own, other, of_a_thread = map(tmp_path.joinpath, names)
    for folder in (own, other, of_a_thread):
        folder.mkdir()
    is_relative_to, taken = pathlib.Path.is_relative_to, contextlib.ExitStack()

    def ask(path, *parents):
        """In the middle of a write, which asks whose study the file belongs to."""
        monkeypatch.undo()
        taken.enter_context(lock_study(of_a_thread))
        return is_relative_to(path, *parents)

    with taken, lock_study(own), lock_study(other):
        monkeypatch.setattr(pathlib.Path, "is_relative_to", ask)
        results.Store(own).write_spec(trial.trial_id, trial.spec)
        assert is_own(of_a_thread)

    assert trial.spec == results.Store(own).read_trial(trial.trial_id).spec


def test_what_cannot_be_locked_is_one_line(tmp_path):
    with lock_study(tmp_path):
        (tmp_path / HEARTBEAT).write_text("")
        refused(tmp_path, results.StudyLockedError, "in use by another process")
    missing = tmp_path / "missing"
    refused(missing, results.WriteStoreError, r"cannot lock study .*create it")

    assert not missing.exists()


def test_a_writer_removes_what_another_could_not(tmp_path):
    (tmp_path / ".tmp-x-plan.json").write_text("half")
    (tmp_path / ".tmp-folder").mkdir()
    with lock_study(tmp_path):
        assert not (tmp_path / ".tmp-x-plan.json").exists()
    assert (tmp_path / ".tmp-folder").is_dir()


NUM_RACES = 2
NUM_MACHINES = 4


def test_a_file_that_cannot_be_removed_fails_nothing(tmp_path, monkeypatch):
    def fail(path, **_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with lock_study(tmp_path):
        monkeypatch.setattr(pathlib.Path, "unlink", fail)

    assert [HEARTBEAT] == left_in(tmp_path)


@pytest.mark.processes
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, synthetic):
    """The error of a read has no path, and would be taken for one of stdout."""

    read = os.read

    def fail(descriptor, size):
        if is_heartbeat(descriptor):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(descriptor, size)

    shape = synthetic.Shape(backends=("in_graph",), repeats=1)
    store = synthetic.make_store(tmp_path, shape)
    plan = store.read_plan()
    with lock_study(tmp_path), monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        with pytest.raises(results.WriteStoreError, match="Stale file") as found:
            store.write_plan(plan)
    cause = found.value.__cause__
    assert str(tmp_path / HEARTBEAT) == cause.filename


def test_another_machine_is_refused_while_the_owner_lives(tmp_path):
    with start_owner(tmp_path, "other") as other:
        assert other.stdout is not None
        assert "held\n" == other.stdout.readline()
        refused(
            tmp_path,
            results.StudyInUseElsewhereError,
            r"in use by a process of another machine, which gave a sign of "
            r"life \d s ago: wait until it ends \(if it was killed, 60 s\), stop",
        )
        other.kill()
    os.utime(tmp_path / HEARTBEAT, (1.0, 1.0))
    with lock_study(tmp_path):
        assert is_own(tmp_path)

    assert [] == left_in(tmp_path)


@pytest.mark.processes
def test_of_machines_that_start_together_one_owns_the_study(tmp_path):
    for race in range(NUM_RACES):
        root = tmp_path / str(race)
        root.mkdir()
        if race % 2:
            dead = root / HEARTBEAT
            dead.write_text("dead 1\n")
            os.utime(dead, (1.0, 1.0))
        start = time.time() + 0.5
        machines = [start_owner(root, f"m{i}", start) for i in range(NUM_MACHINES)]
        answers = [machine.stdout.readline() for machine in machines]
        for machine in machines:
            machine.communicate(timeout=60)

        assert 1 == answers.count("held\n"), (race, answers)
        assert NUM_MACHINES - 1 == answers.count("refused\n")
        assert [] == left_in(root)


@pytest.fixture
def _quick_waits(monkeypatch):
    """Lets what waits for ten seconds wait for ten milliseconds."""
    wait = threading.Event.wait

    def wait_shorter(event, timeout=None):
        return wait(event, timeout and timeout / 1000)

    monkeypatch.setattr(threading.Event, "wait", wait_shorter)


@pytest.mark.usefixtures("_quick_waits")
def test_an_owner_shows_that_it_lives(tmp_path):
    path = tmp_path / HEARTBEAT
    with lock_study(tmp_path):
        os.utime(path, (1.0, 1.0))
        until(lambda: path.stat().st_mtime != 1.0)

    assert [] == left_in(tmp_path)


@pytest.mark.usefixtures("_quick_waits")
def test_an_owner_that_lost_the_study_ends(tmp_path, capsys):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with lock_study(tmp_path):
            (tmp_path / HEARTBEAT).unlink()
            (tmp_path / HEARTBEAT).write_text("other 2\n")
            until(lambda: received)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert "other 2\n" == (tmp_path / HEARTBEAT).read_text()
    assert "was taken over by a process of another machine, since this one gave no" in (
        capsys.readouterr().err
    )


def test_what_is_in_the_place_of_the_file_is_one_line(tmp_path):
    (tmp_path / HEARTBEAT).symlink_to("nothing")
    refused(tmp_path, results.WriteStoreError, r"cannot write '.*lock-heartbeat'")


@pytest.mark.parametrize("text", ["", "\xff\n"])
def test_a_damaged_file_of_a_dead_owner_is_replaced(tmp_path, text):
    path = tmp_path / HEARTBEAT
    path.write_text(text, encoding="latin-1")
    refused(tmp_path, results.StudyInUseElsewhereError)
    os.utime(path, (1.0, 1.0))
    with lock_study(tmp_path):
        assert is_own(tmp_path)

    assert [] == left_in(tmp_path)


def test_a_successor_that_died_on_the_way_is_succeeded(tmp_path):
    for name, text in (
        (HEARTBEAT, "first 1\n"),
        (f"{HEARTBEAT}-after-f6251ef63a6a16468c83", "b 2\n"),
    ):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1.0, 1.0))
    with lock_study(tmp_path):
        assert is_own(tmp_path)

    assert [] == left_in(tmp_path)


def test_a_dead_owner_is_succeeded_once(tmp_path, monkeypatch):
    path = tmp_path / HEARTBEAT
    path.write_text("successor 2\n")
    os.utime(path, (1.0, 1.0))
    earlier, read = iter([b"dead 1\n", b""]), os.read

    def read_earlier(descriptor, size):
        content = next(earlier, None) if is_heartbeat(descriptor) else None
        return read(descriptor, size) if content is None else content

    monkeypatch.setattr(os, "read", read_earlier)
    refused(tmp_path, results.StudyInUseElsewhereError)

    assert "successor 2\n" == path.read_text()


def test_a_file_system_without_links_is_locked_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with lock_study(tmp_path):
        assert [HEARTBEAT] == left_in(tmp_path)
        with elsewhere("other"):
            refused(tmp_path, results.StudyInUseElsewhereError)

    assert [] == left_in(tmp_path)


def test_a_kernel_without_an_id_is_known_by_its_network(tmp_path):
    owners = []
    for _ in range(2):
        with elsewhere(""), lock_study(tmp_path):
            owners.append((tmp_path / HEARTBEAT).read_text().rpartition(" ")[0])

    assert owners[0] == owners[1]
    assert "" != owners[0].rpartition(f" {os.getpid()}")[0]
