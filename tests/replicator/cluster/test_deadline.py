"""The limit on how long a block may take."""

from __future__ import annotations

import threading
import time

from replicator.cluster.liveness.deadline import Deadline


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
