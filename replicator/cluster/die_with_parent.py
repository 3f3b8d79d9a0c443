"""The kernel's parent-death signal: a child process that does not outlive its parent.

Imports nothing of the package, so that the script ``child.py`` can use it too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def request_death_signal() -> bool:
    """Asks the kernel for SIGKILL when the parent ends; it survives exec.

    The signal is lost if the parent has ended before the request: compare
    ``os.getppid()`` afterwards, or watch a pipe as well.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    return True
