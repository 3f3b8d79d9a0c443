"""How the process that waits for all others of a trial ends: like the one to blame."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS: Final = "processes"
"""The folder of what processes print, in the directory of a trial."""
GRACE_SEC: Final = 20.0
"""Time of the other ranks to record what they observed, after one has failed."""


def end_like(code: int) -> int:
    """Ends this process with the signal that a negative exit code stands for."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL needs no default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def signal_name(number: int) -> str:
    """Returns the name of a signal; its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def cause_of(bad: Mapping[int, int]) -> int:
    """Returns the rank whose end explains the others."""
    return min(bad, key=lambda rank: bad[rank] >= 0)
