"""Ends what waits for ever, so that a series names it in place of waiting, too."""

import contextlib
import signal
import time


class Hung(BaseException):
    """It has not come back in time."""


def until(condition, what="", timeout_sec=120.0):
    """Waits for a condition; returns what it returned. ``what`` may be a function."""
    deadline = time.monotonic() + timeout_sec
    while not (found := condition()):
        is_late = time.monotonic() > deadline
        assert not is_late, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def at_most(seconds):
    """Ends the block where it takes longer."""

    def stop(*_):
        raise Hung(f"no end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
