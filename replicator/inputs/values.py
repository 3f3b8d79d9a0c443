"""Values for one step that a caller passes to ``run``: ``PerReplica`` leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step.values import PerReplica, tensor_of

if TYPE_CHECKING:
    from collections.abc import Iterable


_COMPOSITE = (tf.RaggedTensor, tf.SparseTensor)


def as_value(value: Any, caller: str = "inputs") -> Any:
    """Converts a value to an input of a step: a dense, ragged or sparse tensor."""
    if isinstance(value, (tf.Tensor, *_COMPOSITE)):
        return value
    return tensor_of(
        value,
        f"{caller} must be tensors (dense, ragged or sparse), NumPy arrays or "
        "numbers, one for each replica",
    )


def is_composite(value: Any) -> bool:
    """Whether a value is a ragged or sparse tensor."""
    return isinstance(value, _COMPOSITE)


def is_per_replica_nest(value: Any) -> bool:
    """Tells whether every leaf is a ``PerReplica``."""
    leaves = tf.nest.flatten(value)
    return bool(leaves) and all(isinstance(leaf, PerReplica) for leaf in leaves)


def values_of(inputs: Any, replicas: Iterable[int]) -> list[Any]:
    """Takes the values of some replicas out of a nest of ``PerReplica``."""
    return [
        tf.nest.map_structure(lambda leaf, r=r: as_value(leaf[r]), inputs)
        for r in replicas
    ]


def common_spec(leaf: PerReplica[Any]) -> tf.TypeSpec:
    """The type of the values of all replicas.

    Ragged and sparse tensors may have different numbers of rows, as they may in an
    input pipeline.
    """
    if leaf.spec is not None:
        return leaf.spec
    values = [as_value(value) for value in leaf]
    specs = [tf.type_spec_from_value(value) for value in values]
    common = specs[0]
    if is_composite(values[0]):
        common = specs[0].most_specific_common_supertype(specs[1:])
    elif any(not spec.is_compatible_with(specs[0]) for spec in specs[1:]):
        common = None
    if common is None:
        raise ValueError(
            f"inputs differ between replicas in shape or type: {specs}; give every "
            "replica the same shapes"
        )
    return common
