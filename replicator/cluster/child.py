"""Starts a process of a cluster: ties it to its parent, pins it, execs the program.

    python -S child.py PARENT_PID CORES PROGRAM [ARGUMENT...]

A separate script rather than code between fork and exec, because the parent may have
threads (TensorFlow's), and then only exec is safe there. Its settings survive exec.
"""

from __future__ import annotations

import os
import sys

# A script: its own folder is where Python looks first.
from die_with_parent import (  # type: ignore[import-not-found]  # a sibling
    request_death_signal,
)


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
