"""Start of a cluster's process: tie it to its parent, pin it, become the program.

    python -S child.py PARENT_PID CORES PROGRAM [ARGUMENT...]

A script of its own instead of code between fork and exec: the parent may have threads
(TensorFlow's), and then only exec is safe there. What is set here survives exec.
"""

from __future__ import annotations

import os
import sys

# A script: its own folder is where Python looks first.
from die_with_parent import (  # type: ignore[import-not-found]  # a sibling
    request_death_signal,
)


def main() -> None:
    """Becomes the program that the arguments name."""
    parent, cores, *argv = sys.argv[1:]
    if request_death_signal():
        # The signal is lost if the parent ended before the request.
        if os.getppid() != int(parent):
            sys.exit("the process that started this one has ended")
        if cores:
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.execvp(argv[0], argv)  # noqa: S606 (no shell: the arguments are a list)


if __name__ == "__main__":
    main()
