"""First wait: a worker's first dispatch ends, shows progress, or is given up.

Where processes have too few threads, requests that wait for each other never end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

# A server whose threads all wait does not respond to reads either.
_ANSWER_SEC = 60.0


class FirstWait:
    """The wait for the first dispatch of one worker."""

    def __init__(self, limit_sec: float) -> None:
        self._limit_sec = limit_sec
        self._since: float | None = None
        self._seen: tuple[int, ...] = ()
        self._has_ended = False

    def end(self) -> None:
        """Lifts the limit: a dispatch of this worker has ended."""
        self._has_ended = True

    def restart(self) -> None:
        """Counts from the next question on."""
        self._since = None

    def exceeded(
        self, num_steps: int, read_progress: Callable[[], tuple[int, ...]]
    ) -> float | None:
        """The seconds without progress if they are too many, otherwise None."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        limit_sec = self._limit_sec * num_steps
        if self._has_ended or now - self._since <= limit_sec:
            return None
        before, self._seen = self._seen, _answer(read_progress)
        if any(self._seen) and self._seen != before:
            self.restart()
            return None
        return limit_sec


def _answer(read: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """What ``read`` returns, or nothing if it takes too long."""
    answers: list[tuple[int, ...]] = []

    def answer() -> None:
        with contextlib.suppress(tf.errors.OpError):  # a lost server has its own error
            answers.append(read())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(_ANSWER_SEC)
    return answers[0] if answers else ()
