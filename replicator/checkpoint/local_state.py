"""Replica-local state: the copies of variables that differ between replicas.

``CheckpointedBackend`` is the part of the backend contract that saves them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.placement.topology import JobFacts
from replicator.variables.kinds import Kind
from replicator.variables.table import LocalState
from replicator.variables.values import combine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.checkpoint.inventory import Inventory
    from replicator.checkpoint.metadata import Metadata
    from replicator.checkpoint.payload import Payload


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


def collect(repl: CheckpointedBackend, inventory: Inventory) -> dict[str, LocalState]:
    """The replica-local state of saved variables in this process, by path."""
    paths = inventory.paths()
    return {
        paths[id(state.variable)]: state
        for state in repl.local_state()
        if id(state.variable) in paths
    }


def restore(
    repl: CheckpointedBackend,
    inventory: Inventory,
    metadata: Metadata,
    payloads: Sequence[Payload],
) -> str:
    """Restores each replica's own state, or gives all replicas the combined state."""
    saved = [
        LocalState(
            variable=inventory.variables[path],
            kind=Kind(kind),
            values=tuple(v for payload in payloads for v in payload.local[path]),
        )
        for path, kind in metadata.kinds.items()
    ]
    repl.restore_local_state(saved)
    if not saved:
        return "nothing to restore"
    if metadata.num_replicas == repl.num_replicas:
        return f"{len(saved)} variables, each replica its own values"
    return (
        f"{len(saved)} variables, combined from {metadata.num_replicas} replicas and "
        f"copied to {repl.num_replicas}"
    )
