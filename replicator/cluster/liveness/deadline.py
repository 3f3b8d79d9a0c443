"""Timeouts of blocks of code, watched by one thread for the whole process.

TensorFlow's own timeout, ``timeout_seconds`` of a collective op, starts a thread per op
that sleeps until the timeout even if the op finishes at once: with a timeout of 300 s,
fifty collectives per second amount to 15,000 threads, and the process aborts.
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

    It is for the sequential blocks of one thread. Entering and leaving a block is
    cheap: the watching thread wakes up when a timeout may have expired, not per block.
    """

    def __init__(self, expire: Callable[[], None]) -> None:
        self._expire = expire
        self._condition = threading.Condition()
        self._end: float | None = None
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limit(self, sec: float) -> Iterator[None]:
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
                    # A block with an earlier deadline wakes this thread.
                    wait_sec = _IDLE_SEC if end is None else end - now
                    self._next_look = now + wait_sec
                    self._condition.wait(wait_sec)
            if is_over:
                self._expire()
