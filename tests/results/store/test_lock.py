"""One owner of a study, on one machine and on several that do not share their locks."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from damaging import until

import results
from results.store import writing

OWNER = """
import pathlib, sys, time
from results import errors
from results.store import writing
root, name, start = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
take = writing.lock_study
if name:  # as on another machine, whose kernel sees no lock of this one
    writing.kernel_id, take = lambda: name, writing.hold_heartbeat
while time.time() < start:
    pass
try:
    with take(root):
        print("held", flush=True)
        sys.stdin.read()
except errors.StudyInUseElsewhereError:
    print("refused", flush=True)
"""


def start_owner(root, machine="", start=0.0):
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), machine, str(start)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def left_in(root):
    return sorted(path.name for path in root.glob(f"{writing.HEARTBEAT_NAME}*"))


def refused(root, error, message=None, take=writing.lock_study):
    """Returns the error with which a study is not given to this process."""
    with pytest.raises(error, match=message) as found, take(root):
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
    with writing.lock_study(tmp_path):
        assert os.getpid() == writing.read_holder(tmp_path)


def test_one_process_cannot_hold_it_twice(tmp_path):
    with writing.lock_study(tmp_path):
        refused(tmp_path, results.StudyLockedError, f"process {os.getpid()}")
        assert (tmp_path / writing.HEARTBEAT_NAME).exists()

    assert not (tmp_path / writing.HEARTBEAT_NAME).exists()
    with writing.lock_study(tmp_path):
        pass


def test_what_cannot_be_locked_is_one_line(tmp_path):
    with writing.lock_study(tmp_path):
        (tmp_path / writing.HEARTBEAT_NAME).write_text("")
        refused(tmp_path, results.StudyLockedError, "in use by another process")
    missing = tmp_path / "missing"
    refused(missing, results.WriteStoreError, r"cannot lock study .*create it")

    assert not missing.exists()


def test_a_writer_removes_what_another_could_not(tmp_path):
    (tmp_path / ".tmp-x-plan.json").write_text("half")
    (tmp_path / ".tmp-folder").mkdir()
    with writing.lock_study(tmp_path):
        assert not (tmp_path / ".tmp-x-plan.json").exists()
    assert (tmp_path / ".tmp-folder").is_dir()


NUM_RACES = 2
NUM_MACHINES = 4


def test_a_file_that_cannot_be_removed_fails_nothing(tmp_path, monkeypatch):
    def fail(path, **_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with writing.hold_heartbeat(tmp_path):
        monkeypatch.setattr(pathlib.Path, "unlink", fail)

    assert [writing.HEARTBEAT_NAME] == left_in(tmp_path)


@pytest.mark.processes
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, synthetic):
    """The error of a read has no path, and would be taken for one of stdout."""

    read = os.read

    def fail(descriptor, size):
        path = pathlib.Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == writing.HEARTBEAT_NAME:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(descriptor, size)

    shape = synthetic.Shape(backends=("in_graph",), repeats=1)
    store = synthetic.make_store(tmp_path, shape)
    plan = store.read_plan()
    with writing.hold_heartbeat(tmp_path), monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        with pytest.raises(results.WriteStoreError, match="Stale file") as found:
            store.write_plan(plan)
    cause = found.value.__cause__
    assert str(tmp_path / writing.HEARTBEAT_NAME) == cause.filename


def test_another_machine_is_refused_while_the_owner_lives(tmp_path, monkeypatch):
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
    monkeypatch.setattr(writing, "DEAD_SEC", 0.2)
    time.sleep(0.3)
    with writing.lock_study(tmp_path):
        assert writing.kernel_id() in (tmp_path / writing.HEARTBEAT_NAME).read_text()

    assert [] == left_in(tmp_path)


@pytest.mark.processes
def test_of_machines_that_start_together_one_owns_the_study(tmp_path):
    for race in range(NUM_RACES):
        root = tmp_path / str(race)
        root.mkdir()
        if race % 2:
            dead = root / writing.HEARTBEAT_NAME
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


def test_an_owner_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PERIOD_SEC", 0.01)
    path = tmp_path / writing.HEARTBEAT_NAME
    with writing.hold_heartbeat(tmp_path):
        os.utime(path, (1.0, 1.0))
        until(lambda: path.stat().st_mtime != 1.0)

    assert [] == left_in(tmp_path)


def test_an_owner_that_lost_the_study_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "PERIOD_SEC", 0.01)
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with writing.hold_heartbeat(tmp_path):
            (tmp_path / writing.HEARTBEAT_NAME).unlink()
            (tmp_path / writing.HEARTBEAT_NAME).write_text("other 2\n")
            until(lambda: received)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert "other 2\n" == (tmp_path / writing.HEARTBEAT_NAME).read_text()
    assert "was taken over by a process of another machine, since this one gave no" in (
        capsys.readouterr().err
    )


def test_what_is_in_the_place_of_the_file_is_one_line(tmp_path):
    (tmp_path / writing.HEARTBEAT_NAME).symlink_to("nothing")
    refused(tmp_path, results.WriteStoreError, r"cannot write '.*lock-heartbeat'")


@pytest.mark.parametrize("text", ["", "\xff\n"])
def test_a_damaged_file_of_a_dead_owner_is_replaced(tmp_path, text):
    path = tmp_path / writing.HEARTBEAT_NAME
    path.write_text(text, encoding="latin-1")
    refused(tmp_path, results.StudyInUseElsewhereError, take=writing.hold_heartbeat)
    os.utime(path, (1.0, 1.0))
    with writing.hold_heartbeat(tmp_path):
        assert writing.kernel_id() in path.read_text()

    assert [] == left_in(tmp_path)


def test_a_successor_that_died_on_the_way_is_succeeded(tmp_path):
    for name, text in (
        (writing.HEARTBEAT_NAME, "first 1\n"),
        (
            f"{writing.HEARTBEAT_NAME}-after-{writing._digest('first 1' + chr(10))}",
            "b 2\n",
        ),
    ):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1.0, 1.0))
    with writing.hold_heartbeat(tmp_path):
        assert writing.kernel_id() in (tmp_path / writing.HEARTBEAT_NAME).read_text()

    assert [] == left_in(tmp_path)


def test_a_dead_owner_is_succeeded_once(tmp_path, monkeypatch):
    path = tmp_path / writing.HEARTBEAT_NAME
    path.write_text("successor 2\n")
    os.utime(path, (1.0, 1.0))
    earlier, read = iter(["dead 1\n"]), writing._read
    monkeypatch.setattr(writing, "_read", lambda of: next(earlier, None) or read(of))
    refused(tmp_path, results.StudyInUseElsewhereError, take=writing.hold_heartbeat)

    assert "successor 2\n" == path.read_text()


def test_a_file_system_without_links_is_locked_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with writing.hold_heartbeat(tmp_path):
        assert [writing.HEARTBEAT_NAME] == left_in(tmp_path)
        monkeypatch.setattr(writing, "kernel_id", lambda: "other")
        refused(tmp_path, results.StudyInUseElsewhereError, take=writing.hold_heartbeat)

    assert [] == left_in(tmp_path)


def test_a_kernel_without_an_id_is_known_by_its_network(monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "_BOOT_ID", tmp_path / "missing")

    assert writing.kernel_id() == writing.kernel_id() != ""
