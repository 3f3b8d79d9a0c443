"""Time limit of steps whose replicas meet in collectives of one process.

TensorFlow ends these ops by itself where a replica fails. The limit is for what fails
without an error, such as a GPU that does not respond.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.cluster.liveness.deadline import Deadline
from replicator.engine.analysis.plan import FLAT
from replicator.errors import ReplicaTimeoutError
from replicator.validation.arguments import is_positive, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.engine.run.program import Program


class TimeLimit:
    """Ends the collectives of this process when a step takes too long, for good.

    Attributes:
      is_over: Whether a step has taken too long.
    """

    def __init__(self, timeout_sec: float) -> None:
        """Takes the longest duration of one step."""
        if not is_positive(timeout_sec):
            raise ValueError(
                f"timeout_sec {shown(timeout_sec)} must be a positive number of seconds"
            )
        self._timeout_sec = timeout_sec
        self.is_over = False
        self._deadline = Deadline(self._expire)

    @contextlib.contextmanager
    def guard(self, program: Program, what: str, num_steps: int) -> Iterator[None]:
        """Limits what runs inside, if it has such collectives."""
        if not any(plan.algorithm in FLAT for plan in program.plans):
            yield
            return
        if self.is_over:
            raise ReplicaTimeoutError(self._message(what))
        try:
            with self._deadline.limit(self._timeout_sec * num_steps):
                yield
        except tf.errors.OpError as error:
            if self.is_over:
                raise ReplicaTimeoutError(self._message(what)) from error
            raise

    def _message(self, what: str) -> str:
        return (
            f"the replicas of {what} did not meet within {self._timeout_sec:g} s per "
            "step, and their collectives were ended; a device may not respond: start "
            "the program again, from its last checkpoint; if a step is only slow, or "
            "waits for data, use a larger timeout_sec"
        )

    def _expire(self) -> None:
        self.is_over = True
        _tf_workers.abort_collectives("replicas did not meet in time")
