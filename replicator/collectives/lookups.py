"""Lookups: rows of tables that all replicas look up alike, and rows of their examples.

A sparse gradient has one row per lookup. Rows of examples are joined over replicas: one
device would look them all up too. Positions and other ids that do not depend on the
examples are one lookup on one device, so their rows are reduced like a dense gradient:
an optimizer that squares each row must not see them once per replica.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat

if TYPE_CHECKING:
    from replicator.core.context import ReplicaContext

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_SHAPES = frozenset({"Shape", "Size", "OnesLike", "ZerosLike"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PASS_ON = frozenset({"Identity", "IdentityN"})
_MAX_DEPTH = 100


class Ids(enum.IntEnum):
    """How the ids of a lookup compare between replicas."""

    SAME = 0  # the same on all of them
    ALIKE = 1  # the same, unless lengths of examples or copies of variables differ
    OF_EXAMPLES = 2


def split(
    context: ReplicaContext, slices: tf.IndexedSlices
) -> list[tuple[tf.IndexedSlices, Ids]]:
    """Divides a sparse gradient into its lookups, by how their ids compare."""
    search = _Search(context)
    lookups = _lookups(slices.indices)
    found = [search.ids(tensor) for tensor in lookups]
    if len(found) == 1 or set(found) in ({Ids.SAME}, {Ids.OF_EXAMPLES}):
        return [(slices, found[0])]
    sizes = [tf.size(tensor) for tensor in lookups]
    values = tf.split(slices.values, sizes, num=len(sizes))
    return [
        (tf.IndexedSlices(rows, tf.cast(ids, slices.indices.dtype)), kind)
        for rows, ids, kind in zip(values, lookups, found, strict=True)
    ]


def fold(
    context: ReplicaContext, joined: tf.IndexedSlices, own: tf.IndexedSlices
) -> tf.IndexedSlices:
    """Sums joined rows over replicas, if all replicas have the same ids."""
    ids, num_replicas = joined.indices, context.num_replicas_in_sync
    total = tf.size(ids)
    share = tf.maximum(total // num_replicas, 1)
    at = tf.range(total)
    is_same = tf.equal(share * num_replicas, total) & tf.reduce_all(
        tf.equal(ids, tf.gather(ids, at % share))
    )
    num_examples = _rows_of_examples(own.indices)
    if num_examples is not None:
        each = tf.maximum(share // num_examples, 1)
        is_same &= tf.reduce_any(tf.not_equal(ids, tf.gather(ids, at % each)))
    kept = tf.where(is_same, share, total)
    if getattr(context, "has_static_shapes", False):  # what is over is rows of zeros
        values = tf.math.unsorted_segment_sum(joined.values, at % kept, ids.shape[0])
    else:
        values = tf.math.unsorted_segment_sum(
            joined.values, at % tf.maximum(kept, 1), kept
        )
        ids = ids[:kept]
    return tf.IndexedSlices(values, ids, joined.dense_shape)


def _lookups(indices: tf.Tensor) -> list[tf.Tensor]:
    """The ids of each lookup that a gradient is the sum of."""
    if indices.op.type == "Identity":
        return _lookups(indices.op.inputs[0])
    if indices.op.type == "ConcatV2":
        return [ids for each in indices.op.inputs[:-1] for ids in _lookups(each)]
    return [indices]


def _rows_of_examples(indices: tf.Tensor) -> int | None:
    """The examples of a batch, if ids have a first dimension of as many."""
    while indices.op.type in ("Reshape", "Cast", "Identity"):
        if indices.shape.rank != 1:
            break
        indices = indices.op.inputs[0]
    rows = indices.shape[0] if indices.shape.rank else None
    graph = indices.graph
    captured = {id(inner) for inner in graph.internal_captures}
    arguments = [tensor for tensor in graph.inputs if id(tensor) not in captured]
    batches = {tensor.shape[0] for tensor in arguments if tensor.shape.rank}
    return rows if rows in batches and rows != 1 else None


class _Search:
    """Follows ids back to what they are computed from."""

    def __init__(
        self, context: ReplicaContext, arguments: dict[Any, tf.Tensor] | None = None
    ) -> None:
        self._context = context
        self._arguments = arguments or {}  # of functions that are called
        self._found: dict[Any, Ids] = {}
        self._depth = 0

    def ids(self, tensor: tf.Tensor) -> Ids:
        """How a tensor compares between replicas."""
        kind = self._of(tensor)
        if kind is not Ids.SAME:
            return kind
        # Replicas of a stock strategy are traced one by one, with constants of their
        # own; ids that are repeated for each example are found when the step runs.
        is_sure = self._context.is_traced_once and _rows_of_examples(tensor) is None
        return Ids.SAME if is_sure else Ids.ALIKE

    def _of(self, tensor: tf.Tensor) -> Ids:
        if not tf.is_symbolic_tensor(tensor) or tensor.dtype == tf.resource:
            return Ids.SAME
        key = tensor.ref()
        if key not in self._found:
            self._depth += 1
            # What a whole network computes is of examples.
            is_deep = self._depth > _MAX_DEPTH
            self._found[key] = Ids.OF_EXAMPLES if is_deep else self._derived(tensor)
            self._depth -= 1
        return self._found[key]

    def _derived(self, tensor: tf.Tensor) -> Ids:
        op = tensor.op
        if op.type == "Placeholder":
            outer = self._arguments.get(tensor.ref(), _tf_compat.captured(tensor))
            return Ids.OF_EXAMPLES if outer is None else self._of(outer)
        if op.type in _CALLS:
            return self._called(tensor)
        if op.type in _PASS_ON:
            return self._of(op.inputs[tensor.value_index])
        if op.type == "PlaceholderWithDefault" and self._context.is_traced_once:
            call = self._context.collective_of(op.name)
            if call is not None:
                return Ids.SAME if call.kind.is_invariant else Ids.OF_EXAMPLES
        kind = max(map(self._of, op.inputs), default=Ids.SAME)
        if op.type in _READS:
            kind = max(kind, Ids.ALIKE)
        elif op.op_def.is_stateful:
            kind = Ids.OF_EXAMPLES
        is_length = kind is Ids.OF_EXAMPLES and _is_of_lengths(tensor)
        return Ids.ALIKE if is_length else kind

    def _called(self, tensor: tf.Tensor) -> Ids:
        graph = _tf_compat.called_graph(tensor.op)
        if graph is None:
            return Ids.OF_EXAMPLES
        names = (argument.ref() for argument in graph.inputs)
        given = dict(zip(names, tensor.op.inputs, strict=True))
        inner = _Search(self._context, {**self._arguments, **given})
        inner._depth = self._depth
        return inner._of(graph.outputs[tensor.value_index])


def _is_of_lengths(tensor: tf.Tensor) -> bool:
    """Whether a tensor tells how long examples are, and not how many there are.

    Replicas have the same lengths where a batch is divided between them.
    """
    op = tensor.op
    if op.type in _SHAPES:
        (of,) = op.inputs
        dimensions: slice | None = slice(None)
    elif op.inputs and op.inputs[0].op.type == "Shape":
        (of,) = op.inputs[0].op.inputs
        dimensions = _selected(tensor)
    else:
        return False
    if of.shape.rank is None or dimensions is None:
        return False
    return not any(_counts(of, d) for d in range(of.shape.rank)[dimensions])


def _selected(tensor: tf.Tensor) -> slice | None:
    """The dimensions that are taken from a shape; None if that is not known."""
    op = tensor.op
    if op.type == "Unpack":
        return slice(tensor.value_index, tensor.value_index + 1)
    if op.type != "StridedSlice":
        return None
    begin, end = map(tf.get_static_value, op.inputs[1:3])
    if begin is None or end is None:
        return None
    first = 0 if op.get_attr("begin_mask") else int(begin[0])
    if op.get_attr("shrink_axis_mask"):
        return slice(first, None if first == -1 else first + 1)
    return slice(first, None if op.get_attr("end_mask") else int(end[0]))


def _counts(tensor: tf.Tensor, dimension: int) -> bool:
    """Whether a dimension of a tensor may be the number of examples."""
    if tensor.shape[dimension] is not None:
        return False
    op = tensor.op
    if op.type in ("Cast", "Identity"):
        return _counts(op.inputs[0], dimension)
    if op.type == "StridedSlice" and op.get_attr("shrink_axis_mask") & 1:
        return False  # one example
    if op.type == "Transpose":
        order = tf.get_static_value(op.inputs[1])
        return order is None or _counts(op.inputs[0], int(order[dimension]))
    return dimension == 0 or op.type == "Reshape"
