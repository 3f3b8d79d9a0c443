"""The part of the backend contract that checkpoints use.

It is below both ``checkpoint`` and ``contract``, which need not know each other.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.placement.job_facts import JobFacts
from replicator.variables.outside_values import combine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.variables.table import LocalState


class CheckpointedBackend(JobFacts):
    """State of a backend in addition to the users' variables.

    By default there is none: every variable exists once, and contains all state to
    save.
    """

    if TYPE_CHECKING:  # that of every replicator; see ``contract``

        def context(self) -> contextlib.AbstractContextManager[Any]:
            """The scope for creating variables."""

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Gathers one byte string from every worker on all workers, by worker id.

        Also a barrier: no worker returns before all have called it.
        """
        return [payload]

    def local_state(self) -> list[LocalState]:
        """Variables whose copies differ, with the values of this process's replicas."""
        return []

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Sets such variables to the values of all replicas of the job.

        Backends with copies set them if the number of replicas is the same. In any
        case the user's own variable becomes the value that it has outside steps.
        """
        for state in saved:
            values = [tf.constant(value) for value in state.values]
            state.variable.assign(combine(state.variable, state.kind, values))

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        """Inside it, variables contain the complete state that a checkpoint needs.

        Per-replica sums are replaced by their mean; state that other workers own is
        gathered on the chief. A collective: every worker calls it.

        Args:
          variables: The variables to save, in the same order on every worker.
        """
        del variables
        yield

    def restored(self, variables: Sequence[Any]) -> None:
        """Frees state that a checkpoint has restored for other workers.

        Args:
          variables: The restored variables.
        """
        del variables

    def check_alive(self) -> None:
        """Checks that all processes that the job depends on are alive.

        Raises:
          ClusterError: One is lost; the message names it.
        """
