"""A process killed at any moment of a save leaves a whole checkpoint in charge."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import covering
import pytest

SAVER = pathlib.Path(__file__).with_name("saver.py")
NUM_KILLS = 8 if covering.is_full() else 3
PROGRESS_SEC = 120.0


@pytest.fixture
def saver(tmp_path):
    """The process that forks trainers; it and its last child end with the test."""
    errors = (tmp_path / "stderr").open("w", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(SAVER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session of our own child
    process.wait()
    process.stdin.close()
    process.stdout.close()
    errors.close()


def _start(saver):
    saver.stdin.write("\n")
    saver.stdin.flush()
    return int(saver.stdout.readline())


def _completed(directory):
    path = directory / "last_completed"
    return int(path.read_text(encoding="utf-8")) if path.exists() else 0


def _failures(directory):
    text = (directory / "stderr").read_text(encoding="utf-8")
    return text[text.find("Traceback") :] if "Traceback" in text else ""


def _wait_until(predicate, directory):
    end = time.monotonic() + PROGRESS_SEC
    while not predicate():
        if time.monotonic() > end or _failures(directory):
            pytest.fail(f"no progress: {_failures(directory)}")
        time.sleep(0.001)


def _wait_for_saves(directory, number):
    _wait_until(lambda: _completed(directory) >= number, directory)


@pytest.mark.processes
def test_killed_savers_lose_nothing_that_was_saved(saver, tmp_path):
    """Three kills -9; each next process restores bit for bit, and continues.

    The full run kills eight.
    """
    rng = random.Random(20190204)
    previous = 0

    for number in range(NUM_KILLS):
        child = _start(saver)
        # Two more saves: the child has restored, compared everything, and gone on.
        _wait_for_saves(tmp_path, previous + 2)
        if number % 2:
            _wait_until(lambda: any(tmp_path.glob("ckpt-*_temp*")), tmp_path)
            time.sleep(rng.uniform(0, 0.01))
        else:
            time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        before, previous = previous, _completed(tmp_path)

        assert previous >= before + 2

    child = _start(saver)
    _wait_for_saves(tmp_path, previous + 1)
    os.kill(child, signal.SIGKILL)

    assert "" == _failures(tmp_path)
