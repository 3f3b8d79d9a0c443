"""The common part of backends whose variables are on parameter servers.

This process is the client; workers, which are in sync with nobody, and servers run
``python -m replicator.server``.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from replicator.contract import base, programs
from replicator.inputs.iterator import counted
from replicator.validation import user_functions
from replicator.validation.maker import running

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from replicator.async_training.connection import Connection
    from replicator.inputs.iterator import InputIterator


class ScheduledBackend(base.Replicator):
    """A base class that comes before the class that runs a worker's replicas.

    Attributes:
      connection: The cluster, TensorFlow's strategy and coordinator.
    """

    _wraps_alike = False
    _divides_last_step = False
    connection: Connection
    _share: int  # replicas of each worker

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of one worker: those whose gradients are averaged."""
        return self._share

    @property
    def num_programs(self) -> int:
        """One: the chief's; workers and parameter servers serve."""
        return 1

    @property
    def feeds_gpus(self) -> bool:
        """No: workers that may restart run the pipelines."""
        return False

    def schedule(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any = None,
        *more: Any,
        num_steps: int = 1,
        **others: Any,
    ) -> None:
        """Schedules steps, as many on each worker, and does not wait for them.

        Args:
          step_fn: As in ``run``.
          inputs: As in ``run``.
          *more: Rejected; the error shows the equivalent of
            ``schedule(step, args=...)``.
          num_steps: Steps of each worker, in one dispatch.
          **others: Rejected as well.

        Raises:
          ReplicatorError: Misuse inside the step; errors of steps come from ``join``.
        """
        programs.check_caller()
        user_functions.check_no_more("schedule", more, others)
        programs.check_num_steps(num_steps, inputs)
        signature, specs = programs.split_inputs(inputs, self.num_replicas, self.maker)
        with running(self.maker), counted(inputs, num_steps):
            self._schedule(
                step_fn, inputs, signature, specs, num_steps, keeps_results=False
            )

    @abc.abstractmethod
    def _schedule(
        self,
        step_fn: Callable[..., Any],
        inputs: Any,
        signature: Hashable,
        specs: list[Any],
        num_steps: int,
        *,
        keeps_results: bool,
    ) -> Any:
        """Schedules steps over inputs that were checked; returns what has results."""

    @abc.abstractmethod
    def join(self) -> None:
        """Waits until everything that was scheduled has run."""

    def assert_in_sync(self) -> None:
        """Never raises: there is one copy of every shared variable."""
