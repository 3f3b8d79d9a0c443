"""Failure detection: one watch per process, a timeout per replicator or block."""

from __future__ import annotations

import threading
import time

import pytest

from replicator.cluster.liveness import watch as watch_lib
from replicator.cluster.liveness.reachability import Deadline
from replicator.cluster.liveness.watch import FailureDetector, WorkerWatch
from replicator.errors import WorkerLostError

SERVER = "/job:worker/replica:0/task:1"
NAMES = {SERVER: ("worker 1 (localhost:1)", "localhost:1")}
LIMIT_SEC = 30.0


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A server that gives no response from now on, until the event is set."""
    answering = threading.Event()
    monkeypatch.setattr(watch_lib, "answers", lambda *_: answering.is_set())
    monkeypatch.setattr(watch_lib, "close_connections", lambda _: None)
    monkeypatch.setattr(watch_lib, "_POLL_SEC", 0.01)
    yield answering
    answering.set()


def wait_until(is_true: object) -> bool:
    end = time.monotonic() + LIMIT_SEC
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.01)
    return False


def test_each_replicator_has_its_own_timeout(silent: threading.Event) -> None:
    """A second one with a long timeout changes nothing for the first."""
    watch = WorkerWatch(NAMES)
    short, long = FailureDetector(watch, 0.2), FailureDetector(watch, 3600.0)

    with short.guard():
        assert wait_until(lambda: watch.lost)
    assert not long.is_waiting
    with (
        pytest.raises(
            WorkerLostError,
            match=r"^no response from worker 1 \(localhost:1\) for 0\.2 s; restart",
        ),
        short.guard(),
    ):
        pass


def test_a_short_timeout_does_not_end_the_calls_of_another(
    silent: threading.Event,
) -> None:
    """The one that waits decides."""
    watch = WorkerWatch(NAMES)
    short, long = FailureDetector(watch, 0.01), FailureDetector(watch, 3600.0)

    with long.guard():
        assert watch.timeout_sec() == 3600.0
        time.sleep(0.5)  # fifty times the short timeout
        assert {} == watch.lost
        with short.guard():
            assert watch.timeout_sec() == 0.01


def test_while_nobody_waits_the_longest_timeout_counts(silent: threading.Event) -> None:
    """Reading a variable outside a step ends too, but not early."""
    silent.set()
    watch = WorkerWatch(NAMES)
    assert watch.timeout_sec() == watch_lib.DETECTION_TIMEOUT_SEC
    kept = FailureDetector(watch, 1.0)
    gone = FailureDetector(watch, 5.0)
    assert watch.timeout_sec() == 5.0

    del gone

    assert watch.timeout_sec() == kept.timeout_sec


def test_a_server_that_responds_again_in_time_is_not_lost(
    silent: threading.Event,
) -> None:
    """The time without a response is counted from the last response."""
    silent.set()
    watch = WorkerWatch(NAMES)
    detector = FailureDetector(watch, 2.0)

    with detector.guard():
        silent.clear()
        time.sleep(0.3)
        silent.set()
        time.sleep(0.3)
    assert {} == watch.lost


def waited(deadline: Deadline, expired: threading.Event, sec: float) -> bool:
    with deadline.limit(sec):
        return expired.wait(60.0)


def test_a_block_that_is_too_long_expires_once() -> None:
    """From another thread, not before its limit, and again for the next block."""
    expired = threading.Event()
    threads: list[str] = []

    def expire() -> None:
        threads.append(threading.current_thread().name)
        expired.set()

    deadline = Deadline(expire)
    start = time.monotonic()

    assert waited(deadline, expired, 0.2)
    assert time.monotonic() - start >= 0.2
    expired.clear()
    assert waited(deadline, expired, 0.1)
    assert ["replicator_deadline"] * 2 == threads


def test_blocks_in_time_do_not_expire() -> None:
    """However many there are; one thread watches all of them."""
    expired = threading.Event()
    deadline = Deadline(expired.set)
    before = threading.active_count()
    start = time.monotonic()
    longest_sec = 0.0
    while time.monotonic() - start < 0.5:
        entered = time.monotonic()
        with deadline.limit(0.2):
            time.sleep(0.001)
        longest_sec = max(longest_sec, time.monotonic() - entered)

    # On a machine that stands still, a block may not be in time.
    assert not expired.wait(0.3) or longest_sec >= 0.2
    assert before + 1 >= threading.active_count()


def test_a_shorter_limit_is_not_slept_through() -> None:
    """The thread sleeps until the end of the longer one before it."""
    expired = threading.Event()
    deadline = Deadline(expired.set)
    with deadline.limit(600.0):
        time.sleep(0.05)
    start = time.monotonic()

    assert waited(deadline, expired, 0.1)
    assert time.monotonic() - start < 50.0
