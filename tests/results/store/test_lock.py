"""The study lock: one owner, named, and released with its process."""

import os
import signal
import subprocess
import sys

import pytest

from results import errors
from results.store import lock

OWNER = """
import pathlib, sys, time
from results.store import lock
with lock.lock_study(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.processes
def test_second_process_is_refused_with_the_pid_and_a_kill_frees(tmp_path):
    """Kill -9 leaves nothing stale: the kernel drops the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdout.readline() == "held\n"
        with (
            pytest.raises(
                errors.StudyLockedError,
                match=rf"is in use by process {owner.pid}: wait until it ends",
            ) as refusal,
            lock.lock_study(tmp_path),
        ):
            pytest.fail("the lock was given twice")
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()

    assert owner.pid == refusal.value.pid
    with lock.lock_study(tmp_path):
        assert int((tmp_path / lock.HOLDER_NAME).read_text()) == os.getpid()


def test_one_process_cannot_hold_it_twice(tmp_path):
    """Two locks of one process exclude each other too, and release in order."""
    with lock.lock_study(tmp_path):
        with (
            pytest.raises(errors.StudyLockedError, match=f"process {os.getpid()}"),
            lock.lock_study(tmp_path),
        ):
            pytest.fail("the lock was given twice")
        assert (tmp_path / lock.HOLDER_NAME).exists()

    assert not (tmp_path / lock.HOLDER_NAME).exists()
    with lock.lock_study(tmp_path):
        pass


def test_owner_that_has_not_written_its_pid(tmp_path):
    """Between lock and pid the message still makes sense."""
    with lock.lock_study(tmp_path):
        (tmp_path / lock.HOLDER_NAME).write_text("")
        with (
            pytest.raises(errors.StudyLockedError, match="in use by another process"),
            lock.lock_study(tmp_path),
        ):
            pytest.fail("the lock was given twice")


def test_missing_folder_cannot_be_locked(tmp_path):
    with (
        pytest.raises(errors.WriteStoreError, match=r"cannot lock study .*create it"),
        lock.lock_study(tmp_path / "missing"),
    ):
        pytest.fail("locked what does not exist")

    assert not (tmp_path / "missing").exists()


def test_a_writer_removes_what_another_could_not(tmp_path):
    """A write that failed on a full disk, or was killed, leaves a temporary file."""
    (tmp_path / ".tmp-x-plan.json").write_text("half")
    (tmp_path / ".tmp-folder").mkdir()
    with lock.lock_study(tmp_path):
        assert not (tmp_path / ".tmp-x-plan.json").exists()
    assert (tmp_path / ".tmp-folder").is_dir()
