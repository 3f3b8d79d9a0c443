"""Stops processes of a program between its turns: SIGSTOP, until all of them stand."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import psutil

from harness.command.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STOP_SEC: Final = 5.0
"""For all processes to stand: one in a system call of a disk stops after it."""
_POLL_SEC: Final = 0.0005
_STANDING: Final = (
    psutil.STATUS_STOPPED,
    psutil.STATUS_TRACING_STOP,
    psutil.STATUS_ZOMBIE,
    psutil.STATUS_DEAD,
)


class Stopping:
    """The processes of a program, which run only while its trial has a turn.

    Args:
      find: Returns those that there are now.

    Attributes:
      is_stopped: Whether they stand.
    """

    def __init__(self, find: Callable[[], Sequence[psutil.Process]]) -> None:
        self._find = find
        self._known: Sequence[psutil.Process] = ()
        self.is_stopped = False

    def stop(self) -> Sequence[psutil.Process]:
        """Stops all processes, and returns them when they stand.

        Raises:
          CommandError: One does not stop.
        """
        if self.is_stopped:
            return self._known
        self.is_stopped = True
        for process in self._known:  # most are these: looking for others takes longer
            _suspend(process)
        deadline = time.monotonic() + _STOP_SEC
        while left := [one for one in self.find() if not _stands(one)]:
            for process in left:
                _suspend(process)
            if time.monotonic() > deadline:
                raise CommandError(
                    f"process {left[0].pid} of the command does not stop within"
                    f" {_STOP_SEC:g} s of SIGSTOP; measure it without --pausable"
                )
            time.sleep(_POLL_SEC)
        return self._known

    def go_on(self) -> None:
        """Lets all processes continue, if they were stopped."""
        if self.is_stopped:
            self.is_stopped = False
            for process in self._known:
                with contextlib.suppress(psutil.Error):
                    process.resume()

    def find(self) -> Sequence[psutil.Process]:
        """Looks for the processes: known ones stop at once."""
        self._known = self._find()
        return self._known


def _suspend(process: psutil.Process) -> None:
    try:
        process.suspend()
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        raise CommandError(
            f"process {process.pid} of the command belongs to another user, and cannot"
            " be stopped; measure it without --pausable"
        ) from None


def _stands(process: psutil.Process) -> bool:
    try:
        return process.status() in _STANDING
    except psutil.NoSuchProcess:
        return True
