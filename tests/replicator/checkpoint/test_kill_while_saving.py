"""A process killed at any moment of a save leaves a whole checkpoint in charge."""

import os
import random
import signal
import time

import case_cluster
import covering
import fork_server
import programs
import pytest

NUM_KILLS = 8 if covering.is_full() else 3
PROGRESS_SEC = 120.0
KILL_SEC = 30.0


@pytest.fixture
def start(tmp_path):
    started = []

    def start():
        process = fork_server.server(**case_cluster.ENV).start(
            [programs.__file__, "save_without_end", str(tmp_path)],
            env={**os.environ, **case_cluster.ENV},
            log=tmp_path / "stderr",
        )
        started.append(process)
        return process

    yield start
    for process in started:
        _kill(process)


def _kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(KILL_SEC)


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
def test_killed_savers_lose_nothing_that_was_saved(start, tmp_path):
    rng = random.Random(20190204)
    previous = 0

    for number in range(NUM_KILLS):
        child = start()
        # Two more saves: the child has restored, compared everything, and gone on.
        _wait_for_saves(tmp_path, previous + 2)
        if number % 2:
            _wait_until(lambda: any(tmp_path.glob("ckpt-*_temp*")), tmp_path)
            time.sleep(rng.uniform(0, 0.01))
        else:
            time.sleep(rng.uniform(0, 0.2))
        _kill(child)
        before, previous = previous, _completed(tmp_path)

        assert previous >= before + 2

    child = start()
    _wait_for_saves(tmp_path, previous + 1)
    _kill(child)

    assert "" == _failures(tmp_path)
