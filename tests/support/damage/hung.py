"""Ends what waits for ever, so that a series names it in place of waiting, too."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Hung(BaseException):
    """It has not come back in time."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends the block where it takes longer."""

    def stop(*_: object) -> None:
        raise Hung(f"no end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
