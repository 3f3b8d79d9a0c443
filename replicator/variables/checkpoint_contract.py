"""What a checkpoint asks of the backend whose training it saves."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.variables.copy_values import combine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.variables.table import LocalState


class CheckpointedBackend:
    """State beside the variables that users see.

    As it stands, the contract of a backend that has none: every variable exists once,
    and holds all that there is to save.
    """

    def local_state(self) -> list[LocalState]:
        """Variables whose copies differ, with the values of this process's replicas."""
        return []

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Gives such variables the values of all replicas of the job.

        Backends with copies set them where there are as many replicas; everywhere
        the user's own variable becomes what the copies read as outside steps.
        """
        for state in saved:
            values = [tf.constant(value) for value in state.values]
            state.variable.assign(combine(state.variable, state.kind, values))

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        """Lets variables hold, inside it, all that a checkpoint needs of them.

        Sums that each replica keeps for itself become their mean, which is what counts
        of them; state that other workers keep comes to the chief. A collective: every
        worker calls it.

        Args:
          variables: What is saved, in the same order on every worker.
        """
        del variables
        yield

    def restored(self, variables: Sequence[Any]) -> None:
        """Lets go of what a checkpoint held for other workers.

        Args:
          variables: What was restored.
        """
        del variables

    def check_alive(self) -> None:
        """Checks that all processes are there whose loss would end the job.

        Raises:
          ClusterError: One is lost; says which.
        """
