"""What all processes of a program have used so far, and occupy."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Returns the processes of a program.
    Find = Callable[[], Sequence[psutil.Process]]

_TICKS_PER_SEC: Final = os.sysconf("SC_CLK_TCK")
_PERIOD_SEC: Final = 1.0


@dataclasses.dataclass(kw_only=True, slots=True)
class Used:
    """Sums over processes, by the names of ``resource.getrusage``; times in seconds."""

    ru_utime: float = 0.0
    ru_stime: float = 0.0
    ru_minflt: int = 0
    ru_majflt: int = 0
    ru_nivcsw: int = 0


class ProgramUse:
    """Reads what a program has used; it stands while it is read.

    Args:
      stop: Stops it, and returns its processes.
    """

    def __init__(self, stop: Find) -> None:
        self._stop = stop

    def __call__(self) -> Used:
        """Returns it; processes that have ended count no more."""
        found = Used()
        for process in self._stop():
            with contextlib.suppress(OSError, psutil.Error):
                # proc(5): what follows the name, which may have brackets and blanks.
                text = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
                fields = text.rpartition(")")[2].split()
                found.ru_minflt += int(fields[7])
                found.ru_majflt += int(fields[9])
                found.ru_utime += int(fields[11]) / _TICKS_PER_SEC
                found.ru_stime += int(fields[12]) / _TICKS_PER_SEC
                found.ru_nivcsw += process.num_ctx_switches().involuntary
        return found


class ProgramMemory:
    """The most that all processes of a program occupied, where it was read.

    Args:
      find: Returns its processes.

    Attributes:
      method: How, for the record.
    """

    method = "resident size of all processes, read between steps, at most every second"

    def __init__(self, find: Find) -> None:
        self._find, self._peak, self._next_sec = find, 0, 0.0

    def start(self) -> None:
        """Starts the window."""
        self._peak, self._next_sec = 0, 0.0
        self.sample()

    def sample(self) -> None:
        """Reads the present size, unless it has just been read."""
        if (now := time.monotonic()) < self._next_sec:
            return
        self._next_sec = now + _PERIOD_SEC
        total = 0
        for process in self._find():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self._peak = max(self._peak, total)

    def peak_bytes(self) -> int:
        """Returns the most since ``start``."""
        return self._peak
