"""Replica-local state: the copies of variables that differ between replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.variables.kinds import Kind
from replicator.variables.table import LocalState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.checkpoint.inventory import Inventory
    from replicator.checkpoint.metadata import Metadata
    from replicator.checkpoint.payload import Payload
    from replicator.variables.checkpoint_contract import CheckpointedBackend


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
