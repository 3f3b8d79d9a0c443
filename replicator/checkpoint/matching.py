"""Matching: checks that a checkpoint fits a model and its optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.checkpoint.inventory import Inventory, differences, summarize
from replicator.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.checkpoint.local_state import CheckpointedBackend
    from replicator.checkpoint.metadata import Metadata


def optimizers(inventory: Inventory) -> dict[str, list[str] | None]:
    """By path of an optimizer, the paths of its weights; None if it is not built."""
    paths = inventory.paths()
    result: dict[str, list[str] | None] = {}
    for path, optimizer in inventory.optimizers.items():
        updated = _tf_compat.optimized_variables(optimizer)
        result[path] = updated and [
            paths[id(_tf_compat.unwrap(variable))] for variable in updated
        ]
    return result


def require(
    repl: CheckpointedBackend,
    trackables: Mapping[str, Any],
    metadata: Metadata,
    path: str,
) -> Inventory:
    """Returns the inventory of the objects to restore, with built optimizers."""
    inventory = Inventory(trackables)
    if _build_optimizers(repl, metadata, inventory):
        inventory = Inventory(trackables)
    found = differences(metadata.variables, inventory.facts())
    if found:
        raise CheckpointMismatchError(
            f"checkpoint {path!r} (step {metadata.step}, {metadata.backend}, "
            f"{metadata.num_replicas} replicas) belongs to another model: "
            f"{summarize(found)}; build the model and optimizer that were saved, or "
            "choose another directory"
        )
    return inventory


def _build_optimizers(
    repl: CheckpointedBackend, metadata: Metadata, inventory: Inventory
) -> bool:
    """Creates the slots that the checkpoint has values for; returns whether it did."""
    # The objects that their owners return: Keras variables for Keras models.
    weights = {
        id(_tf_compat.unwrap(variable)): variable
        for value in inventory.objects.values()
        for variable in getattr(value, "variables", ())
    }
    has_built = False
    for name, paths in metadata.optimizers.items():
        value: Any = inventory.optimizers.get(name)
        is_known = bool(paths) and set(paths or ()) <= set(inventory.variables)
        if not is_known or getattr(value, "built", True):
            continue  # the differences are reported afterwards
        variables = [inventory.variables[path] for path in paths or ()]
        with repl.context():
            value.build([weights.get(id(v), v) for v in variables])
        has_built = True
    return has_built
