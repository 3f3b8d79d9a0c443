"""Kills a trial when the harness exits, even if the harness was killed.

Two independent mechanisms, because each has a gap: the parent-death signal (lost if
the parent died before the request) and end-of-file on a pipe whose other end only the
harness has open (works only once this process runs Python code).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from replicator.cluster.die_with_parent import request_death_signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("beat", "request_death_signal", "watch_pipe")
HEARTBEAT_SEC = 5.0


def watch_pipe(descriptor: int) -> None:
    """Kills this process group when the pipe's other end is closed; uses a thread."""

    def wait() -> None:
        # The harness writes nothing: any return is end-of-file.
        while os.read(descriptor, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="watch-parent", daemon=True).start()


def beat(write: Callable[[], None]) -> None:
    """Calls ``write`` every ``HEARTBEAT_SEC`` in a separate thread."""

    def loop() -> None:
        while True:
            time.sleep(HEARTBEAT_SEC)
            write()

    threading.Thread(target=loop, name="heartbeat", daemon=True).start()
