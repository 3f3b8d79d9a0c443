"""Reductions of what ``run`` returned: of one process, or over several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import collectives, reducible
from replicator import context as context_lib
from replicator.per_replica import PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable

    from replicator.base import Replicator


def reduce_here(op: str, value: Any) -> Any:
    """Reduces what this process has; see ``Replicator.reduce``."""
    context_lib.check_reduce_op(op)

    def reduce_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, PerReplica):
            return leaf
        if leaf[0] is None:
            return None
        if op == "mean":
            context_lib.check_mean(leaf[0], "reduce")
        if len(leaf) == 1:
            return leaf[0]
        with tf.device("CPU:0"):
            stacked = tf.stack([tf.identity(value) for value in leaf.values])
            return getattr(tf, f"reduce_{op}")(stacked, axis=0)

    return tf.nest.map_structure(reduce_leaf, value)


def reduce_over_workers(repl: Replicator, op: str, value: Any) -> Any:
    """Reduces by a step that does nothing else; see ``Replicator.reduce``."""
    context_lib.check_reduce_op(op)
    leaves = tf.nest.flatten(value)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, PerReplica) and leaf[0] is not None
    ]
    for place in places:
        reducible.check(leaves[place][0], op, "reduce")
    if places:
        reduced = repl.run(_REDUCTIONS[op], [leaves[place] for place in places])
        for place, leaf in zip(places, reduced, strict=True):
            leaves[place] = leaf
    results = [leaf[0] if isinstance(leaf, PerReplica) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(value, results)


def _reduction(op: str) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        return collectives.all_reduce(value, op)

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


# Fixed functions: each is traced once per structure and shapes.
_REDUCTIONS = {op: _reduction(op) for op in context_lib.REDUCE_OPS}
