"""A limit on how long something may take, kept by one thread for the whole process.

TensorFlow's own limit, ``timeout_seconds`` of a collective op, starts a thread for each
op that sleeps until the limit even if the op is done at once: with a limit of 300 s,
fifty collectives per second come to 15,000 threads, and then the process ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IDLE_SEC = 3600.0


class Deadline:
    """Calls a function from another thread when a block takes too long.

    Blocks of one thread, one after the other. Entering and leaving one is cheap: the
    watching thread looks at the clock when a limit may be over, not at each block.
    """

    def __init__(self, expire: Callable[[], None]) -> None:
        """Takes what is called, once for each block that is too long."""
        self._expire = expire
        self._condition = threading.Condition()
        self._end: float | None = None
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limit(self, sec: float) -> Iterator[None]:
        """Lets the block inside take at most ``sec`` seconds."""
        end = time.monotonic() + sec
        with self._condition:
            self._end = end
            if end < self._next_look:
                self._condition.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="replicator_deadline", daemon=True
            )
            self._thread.start()
        try:
            yield
        finally:
            with self._condition:
                self._end = None

    def _watch(self) -> None:
        while True:
            with self._condition:
                now, end = time.monotonic(), self._end
                is_over = end is not None and now >= end
                if is_over:
                    self._end = None
                else:
                    # A block that is to end before this says so.
                    wait_sec = _IDLE_SEC if end is None else end - now
                    self._next_look = now + wait_sec
                    self._condition.wait(wait_sec)
            if is_over:
                self._expire()
