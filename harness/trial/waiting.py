"""Waits for the end of a process without looking again and again.

``Popen.wait`` with a time limit looks every 50 ms, which a trial would wait in vain.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

# Milliseconds have to fit into an int of C.
_LONGEST_POLL_SEC = 86_400.0


def wait(process: subprocess.Popen[bytes], timeout_sec: float) -> int:
    """Returns the exit code of a child process, as soon as it has ended.

    Kernels without descriptors of processes (Linux before 5.3, macOS) are asked as
    ``Popen.wait`` does.
    """
    deadline = time.monotonic() + timeout_sec
    if (code := process.poll()) is not None:
        return code
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return process.wait(timeout_sec)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        left_sec = max(0.0, deadline - time.monotonic())
        poll.poll(min(left_sec, _LONGEST_POLL_SEC) * 1000)
    finally:
        os.close(descriptor)
    return process.wait(max(0.0, deadline - time.monotonic()))
