"""Ends what waits for ever, so that a series names it in place of waiting, too."""

import contextlib
import signal


class Hung(BaseException):
    """It has not come back in time."""


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
