"""Reductions of the return values of ``run``, in one process or over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import reducible, reductions
from replicator.inputs.values import as_value, is_composite
from replicator.step import context as context_lib
from replicator.step.values import PerReplica
from replicator.validation import maker

if TYPE_CHECKING:
    from collections.abc import Callable

    from replicator.validation.maker import Maker


def reduce_here(op: str, value: Any, num_replicas: int, user: Maker) -> Any:
    """Reduces the values of this process; see ``Replicator.reduce``."""
    context_lib.check_reduce_op(op)

    def reduce_leaf(leaf: Any) -> Any:
        values = _values_of(leaf, op, num_replicas, user)
        if values is None:
            return leaf[0] if isinstance(leaf, PerReplica) else leaf
        if len(values) == 1:
            return values[0]
        with tf.device("CPU:0"):
            return reducible.combine(values, op)

    return tf.nest.map_structure(reduce_leaf, value)


def _values_of(
    leaf: Any, op: str, num_replicas: int, user: Maker
) -> list[tf.Tensor] | None:
    """The tensors to reduce, or None if there is nothing to reduce."""
    if not isinstance(leaf, PerReplica):
        return None
    maker.check(leaf, user, "a PerReplica", "pass what run() of this one returned")
    if len(leaf) != num_replicas:
        raise ValueError(
            f"reduce {op!r} of {len(leaf)} values per leaf, but there are "
            f"{num_replicas} replicas; pass what run() returned"
        )
    if leaf[0] is None:
        return None
    values = [as_value(value, "values to reduce") for value in leaf]
    for value in values:
        if is_composite(value):
            raise TypeError(
                f"reduce {op!r} of a {type(value).__name__!r} is not defined; reduce a "
                "tensor that the step computes from it, or use list(per_replica_value)"
            )
        reducible.check(value, op, "reduce")
    kinds = [f"{value.dtype.name}{value.shape}" for value in values]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"reduce {op!r} of values whose shape or type differs between replicas, "
            f"{', '.join(kinds)}, is not defined; reduce in the step first (to a mean "
            "or a sum), or use list(per_replica_value)"
        )
    return values


def reduce_over_workers(
    run: Callable[..., Any], op: str, value: Any, num_replicas: int, user: Maker
) -> Any:
    """Reduces in a step of its own, which ``run`` runs; see ``Replicator.reduce``."""
    context_lib.check_reduce_op(op)
    leaves = tf.nest.flatten(value)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if _values_of(leaf, op, num_replicas, user) is not None
    ]
    if places:
        reduced = run(_REDUCTIONS[op], [leaves[place] for place in places])
        for place, leaf in zip(places, reduced, strict=True):
            leaves[place] = leaf
    results = [leaf[0] if isinstance(leaf, PerReplica) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(value, results)


def _reduction(op: str) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        return reductions.all_reduce(value, op)

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


# Fixed functions: each is traced once per structure and shapes.
_REDUCTIONS = {op: _reduction(op) for op in context_lib.REDUCE_OPS}
