"""Child processes that do not outlive their parent, by the parent-death signal.

    python -S die_with_parent.py PARENT_PID CORES PROGRAM [ARGUMENT...]

As a script, it ties a process of a cluster to its parent, pins it, and execs the
program; its settings survive exec. Code between fork and exec is not safe, because the
parent may have threads (TensorFlow's). It imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def request_death_signal() -> bool:
    """Asks the kernel for SIGKILL when the parent ends; it survives exec."""
    # The signal is lost if the parent has ended before the request: compare
    # ``os.getppid()`` afterwards, or watch a pipe as well.
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    return True


def main() -> None:
    """Execs the program in the arguments."""
    parent, cores, *argv = sys.argv[1:]
    if request_death_signal():
        # The signal is lost if the parent exited before the request.
        if os.getppid() != int(parent):
            sys.exit("the process that started this one has exited")
        if cores:
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.execvp(argv[0], argv)  # noqa: S606 (no shell: the arguments are a list)


if __name__ == "__main__":
    main()
