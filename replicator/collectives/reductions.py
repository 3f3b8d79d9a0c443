"""Reductions over replicas that users call: dense and sparse, over nests."""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data
from replicator.collectives import differentiable
from replicator.collectives.kinds import AllConcat, AllReduce
from replicator.collectives.transport import check_compression
from replicator.core import context as context_lib
from replicator.core.step import tensor_of
from replicator.core.validation import format_value, is_integer
from replicator.errors import SplitBatchError
from replicator.inputs.batches import element_of, part_of_batch
from replicator.inputs.context import InputContext

if TYPE_CHECKING:
    from replicator.core.context import ReplicaContext


class Ids(enum.IntEnum):
    """How the ids of a lookup compare between replicas."""

    SAME = 0  # the same on all of them
    ALIKE = 1  # the same, unless lengths of examples or copies of variables differ
    OF_EXAMPLES = 2


@differentiable.as_written
def all_reduce(value: Any, op: str = "sum", *, compression: str | None = None) -> Any:
    """Reduces a value over all replicas.

    Args:
      value: A nest of tensors of the same structure and shapes on every replica;
        ``tf.IndexedSlices`` leaves stay sparse with ``sum`` and ``mean``, and may
        have different numbers of rows on every replica. Rows of all replicas are
        joined, but for those whose indices do not depend on examples, such as
        positions: they are reduced one by one. All numeric types are
        supported; integer sums wrap around as in TensorFlow; bool is supported with
        ``min`` (all) and ``max`` (any).
      op: ``sum``, ``mean``, ``min`` or ``max``.
      compression: ``bfloat16`` or ``float16`` sends float32 and float64 from one memory
        to another in 16 bits; see ``transport.py``. Gradients of the collective
        are sent in full precision.

    Returns:
      A nest of the same structure and shapes, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      OptimizerOptionError: Unknown ``compression``.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Unknown ``op``, the mean of integers, the minimum of complex numbers,
        or a type that is not a number.
    """
    context = context_lib.require("all_reduce")
    context_lib.check_reduce_op(op)
    kind = AllReduce(op=op, wire_dtype=check_compression(compression))
    leaves = differentiable.tensors_of(value, "all_reduce")
    for leaf in leaves:
        differentiable.check_reducible(leaf, op, "all_reduce")
    if not any(isinstance(leaf, tf.IndexedSlices) for leaf in leaves):
        return tf.nest.pack_sequence_as(value, _all_reduce_dense(context, leaves, kind))
    parts = [_lookups_of(context, leaf, kind) for leaf in leaves]
    alike = [
        differentiable.values_of(x)
        for kinds in parts
        for x, ids in kinds
        if ids is Ids.SAME
    ]
    sums = iter(_all_reduce_dense(context, alike, kind))
    reduced = [
        [
            differentiable.with_values(part, next(sums))
            if ids is Ids.SAME
            else _all_reduce_sparse(context, part, kind, ids)
            for part, ids in kinds
        ]
        for kinds in parts
    ]
    return tf.nest.pack_sequence_as(value, list(map(_concat, reduced, leaves)))


def all_sum(value: Any) -> Any:
    """Sums a nest over all replicas; see ``all_reduce``."""
    return all_reduce(value, "sum")


def all_mean(value: Any) -> Any:
    """Averages a nest over all replicas (sum / num_replicas); see ``all_reduce``."""
    return all_reduce(value, "mean")


def all_min(value: Any) -> Any:
    """Takes the elementwise minimum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "min")


def all_max(value: Any) -> Any:
    """Takes the elementwise maximum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "max")


def _all_reduce_dense(
    context: ReplicaContext, tensors: Sequence[tf.Tensor], kind: AllReduce
) -> list[tf.Tensor]:
    # float16 has 16 bits already; what averages it in float32 is not narrowed again.
    whole = dataclasses.replace(kind, wire_dtype=None)
    kinds = [whole if tensor.dtype == tf.float16 else kind for tensor in tensors]
    results: dict[int, tf.Tensor] = {}
    for one in dict.fromkeys(kinds):
        places = [index for index, other in enumerate(kinds) if other == one]
        sent = [differentiable.widened(tensors[index], kind.op) for index in places]
        reduced = differentiable.communicate(context, one, sent)
        results.update(zip(places, reduced, strict=True))
    return [tf.cast(results[index], x.dtype) for index, x in enumerate(tensors)]


def _all_reduce_sparse(
    context: ReplicaContext, slices: tf.IndexedSlices, kind: AllReduce, ids: Ids
) -> tf.IndexedSlices:
    """Joins slices, whose numbers may differ: the sum of sparse tensors."""
    dtype = slices.values.dtype
    narrow = tf.cast(slices.values, kind.sent_dtype(dtype))
    values, indices = differentiable.communicate(
        context, AllConcat(), [narrow, slices.indices]
    )
    values = tf.cast(values, dtype)
    if kind.op == "mean":
        values /= tf.cast(context.num_replicas_in_sync, values.dtype)
    joined = tf.IndexedSlices(values, indices, slices.dense_shape)
    return joined if ids is Ids.OF_EXAMPLES else _fold(context, joined, slices)


def _concat(parts: Sequence[Any], leaf: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    values = tf.concat([part.values for part in parts], axis=0)
    indices = tf.concat([part.indices for part in parts], axis=0)
    return tf.IndexedSlices(values, indices, leaf.dense_shape)


# A sparse gradient has one row per lookup. Rows of examples are joined over replicas:
# one device would look them all up too. Positions and other ids that do not depend on
# the examples are one lookup on one device, so their rows are reduced like a dense
# gradient: an optimizer that squares each row must not see them once per replica.

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_SHAPES = frozenset({"Shape", "Size", "OnesLike", "ZerosLike"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PASS_ON = frozenset({"Identity", "IdentityN"})


def _lookups_of(
    context: ReplicaContext, leaf: Any, kind: AllReduce
) -> list[tuple[Any, Ids]]:
    """What is reduced in one way each: a dense tensor, or lookups of a sparse one."""
    if not isinstance(leaf, tf.IndexedSlices):
        return [(leaf, Ids.SAME)]
    if kind.op not in ("sum", "mean"):
        raise ValueError(
            "all_reduce of tf.IndexedSlices supports 'sum' and 'mean', but not "
            f"{kind.op!r}; use tf.convert_to_tensor on the slices first"
        )
    if context.num_replicas_in_sync == 1:
        return [(leaf, Ids.OF_EXAMPLES)]
    if not tf.is_symbolic_tensor(leaf.indices):  # made outside the step
        ids = tf.identity(leaf.indices)
        leaf = tf.IndexedSlices(leaf.values, ids, leaf.dense_shape)
    lookups = _lookups(leaf.indices)
    kinds = [_compare(context, ids) for ids in lookups]
    if len(kinds) == 1 or set(kinds) in ({Ids.SAME}, {Ids.OF_EXAMPLES}):
        return [(leaf, kinds[0])]
    sizes = [tf.size(ids) for ids in lookups]
    values = tf.split(leaf.values, sizes, num=len(sizes))
    return [
        (tf.IndexedSlices(rows, tf.cast(ids, leaf.indices.dtype)), kind_of_ids)
        for rows, ids, kind_of_ids in zip(values, lookups, kinds, strict=True)
    ]


def _fold(
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
        num_rows = ids.shape[0]
    else:
        num_rows, ids = kept, ids[:kept]
    places = at % tf.maximum(kept, 1)
    values = tf.math.unsorted_segment_sum(joined.values, places, num_rows)
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


def _compare(context: ReplicaContext, ids: tf.Tensor) -> Ids:
    """How ids compare between replicas: as what differs most that they come from."""
    found, seen = Ids.SAME, set()
    frames: list[dict[Any, tf.Tensor]] = [{}]  # Arguments of functions that are called.
    # Tensors to follow, as what they count at most, and their frames.
    todo = [(ids, Ids.OF_EXAMPLES, 0)]
    while todo:
        tensor, most, frame = todo.pop()
        if not tf.is_symbolic_tensor(tensor) or tensor.dtype == tf.resource:
            continue
        key = tensor.ref(), most, frame
        if most <= found or key in seen:
            continue
        seen.add(key)
        kind, sources, given = _origin(context, tensor, frames[frame])
        if given:
            frames.append({**frames[frame], **given})
            frame = len(frames) - 1
        if _is_of_lengths(tensor):
            most = Ids.ALIKE
        found = max(found, min(kind, most))
        todo += [(source, most, frame) for source in sources]
    # Replicas of a stock strategy are traced one by one, with constants of their own;
    # ids that are repeated for each example are found when the step runs.
    is_sure = context.is_traced_once and _rows_of_examples(ids) is None
    return Ids.SAME if found is Ids.SAME and is_sure else max(found, Ids.ALIKE)


def _origin(
    context: ReplicaContext, tensor: tf.Tensor, arguments: Mapping[Any, tf.Tensor]
) -> tuple[Ids, Sequence[tf.Tensor], Mapping[Any, tf.Tensor]]:
    """What an op adds to its sources, these, and arguments of a function it calls."""
    op, kind, given = tensor.op, Ids.SAME, {}
    sources: Sequence[tf.Tensor | None] = op.inputs  # None: examples.
    is_marker = op.type == "PlaceholderWithDefault" and context.is_traced_once
    call = context.collective_of(op.name) if is_marker else None
    if op.type == "Placeholder":
        sources = [arguments.get(tensor.ref(), _tf_compat.captured(tensor))]
    elif op.type in _CALLS:
        graph = _tf_compat.called_graph(op)
        sources = [graph and graph.outputs[tensor.value_index]]
        names = [argument.ref() for argument in graph.inputs] if graph else []
        given = dict(zip(names, op.inputs, strict=False))
    elif op.type in _PASS_ON:
        sources = [op.inputs[tensor.value_index]]
    elif call is not None:
        sources = [] if call.kind.is_invariant else [None]
    elif op.type in _READS:
        kind = Ids.ALIKE
    elif op.op_def.is_stateful:
        kind = Ids.OF_EXAMPLES
    known = [source for source in sources if source is not None]
    return kind if len(known) == len(sources) else Ids.OF_EXAMPLES, known, given


def _is_of_lengths(tensor: tf.Tensor) -> bool:
    """Whether a tensor tells how long examples are, and not how many there are."""
    # Replicas have the same lengths where a batch is divided between them.
    op = tensor.op
    dimensions: slice | None = slice(None)
    if op.type not in _SHAPES:
        if not op.inputs or op.inputs[0].op.type != "Shape":
            return False
        dimensions = _selected(tensor)
        op = op.inputs[0].op
    counted = op.inputs[0]
    if counted.shape.rank is None or dimensions is None:
        return False
    return not any(_counts(counted, d) for d in range(counted.shape.rank)[dimensions])


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


class GlobalBatches(NamedTuple):
    dataset: tf.data.Dataset  # The examples.
    share: Fraction  # Those of one replica in a whole global batch, on average.


# What the results of ``split_global_batches`` divide.
GLOBAL_BATCHES: weakref.WeakKeyDictionary[tf.data.Dataset, GlobalBatches] = (
    weakref.WeakKeyDictionary()
)


def split_global_batches(
    dataset: tf.data.Dataset,
    ctx: InputContext,
    global_batch_size: int,
    *,
    uneven: bool = False,
) -> tf.data.Dataset:
    """Batches examples so that an epoch feeds each exactly once, on all replicas.

    Every step divides the next ``global_batch_size`` examples equally among the
    replicas. The rest of the epoch is one smaller step, whose parts differ by at most
    one example and may be empty: compute the loss with ``mean_over_examples``, which
    weights the parts.

    Each pipeline reads the whole dataset and keeps its part, so the dataset must yield
    the same order in all pipelines (give ``shuffle`` a seed).

    Args:
      dataset: Single examples, the same for every pipeline: do not ``shard`` it.
      ctx: The argument of the input function.
      global_batch_size: Examples per step over all replicas.
      uneven: Whether the parts of every step may differ by one example, so that any
        number of replicas divides the global batch (elastic training).

    Returns:
      A dataset of per-replica batches; the leading dimension is unknown.

    Raises:
      SplitBatchError: The global batch is not divisible by the replicas, or pipelines
        would each shuffle in an order of their own.
      TypeError: Not a dataset, or not an ``InputContext``.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"split_global_batches() takes a tf.data.Dataset of single examples, but "
            f"got {format_value(dataset)}; create one with "
            "tf.data.Dataset.from_tensor_slices"
        )
    if not isinstance(ctx, InputContext):
        raise TypeError(
            "split_global_batches() takes the InputContext that is the argument of the "
            f"input function, but got {format_value(ctx)}; write def input_fn(ctx): "
            "return split_global_batches(dataset, ctx, global_batch_size)"
        )
    if not isinstance(uneven, bool):
        raise TypeError(f"uneven {format_value(uneven)} must be True or False")
    num_replicas = ctx.num_replicas_in_sync
    if uneven and is_integer(global_batch_size, least=num_replicas):
        share = Fraction(global_batch_size, num_replicas)
    else:
        share = Fraction(ctx.get_per_replica_batch_size(global_batch_size))
    num_in_turn, rest = divmod(num_replicas, ctx.num_input_pipelines)
    if rest:
        raise SplitBatchError(
            f"{num_replicas} replicas are not divisible by "
            f"{ctx.num_input_pipelines} input pipelines; use the same number of "
            "replicas on every worker"
        )
    if ctx.num_input_pipelines > 1 and _tf_data.shuffles_at_random(dataset):
        raise SplitBatchError(
            f"{ctx.num_input_pipelines} input pipelines read a dataset that has a "
            "shuffle() without a seed, each in an order of its own, so that examples "
            "would be repeated and lost; write shuffle(..., seed=...)"
        )
    first = ctx.input_pipeline_id * num_in_turn

    def parts(*arguments: Any) -> tf.data.Dataset:
        nest = element_of(arguments, dataset)
        return tf.data.Dataset.range(first, first + num_in_turn).map(
            lambda replica_id: part_of_batch(nest, replica_id, num_replicas)
        )

    divided = dataset.batch(int(share * num_replicas)).flat_map(parts)
    GLOBAL_BATCHES[divided] = GlobalBatches(dataset=dataset, share=share)
    return divided


def mean_over_examples(values: Any) -> tf.Tensor:
    """Averages per-example values so that replicas are weighted by their examples.

    Returns ``sum(values) * R / N`` with N examples on all R replicas: its mean over
    replicas (``reduce("mean")``, and the average of gradients in ``wrap_optimizer``)
    is the mean over all examples of the step, however many each replica has. With
    equal batches it equals ``tf.reduce_mean``. A plain ``tf.reduce_mean`` in a step
    weights every replica equally, and is NaN on a replica without examples.

    Call it in replica context.

    Args:
      values: One value per example, of a floating type and shape ``[examples]``.

    Returns:
      A scalar of the type of ``values``.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: Not a dense tensor.
      ValueError: Not a vector of a floating type.
    """
    replica = context_lib.require("mean_over_examples")
    values = tensor_of(
        values, "mean_over_examples() takes a tensor of one value per example"
    )
    if values.shape.rank != 1 or not values.dtype.is_floating:
        raise ValueError(
            f"mean_over_examples needs one floating value per example, shape "
            f"[examples], but got {values.dtype.name} of shape {values.shape}; use an "
            "unreduced loss (reduction=None)"
        )
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    total = tf.stop_gradient(all_sum(tf.cast(tf.size(values), wide)))
    # The mean of a step without examples on any replica is 0 rather than NaN.
    weight = tf.math.divide_no_nan(
        tf.cast(replica.num_replicas_in_sync, total.dtype), total
    )
    summed = tf.reduce_sum(differentiable.widened(values, "mean"))
    return tf.cast(summed * tf.cast(weight, summed.dtype), values.dtype)


def all_concat(value: Any, axis: int = 0) -> Any:
    """Joins a nest over all replicas along a dimension, in order of ``replica_id``."""
    context = context_lib.require("all_gather")
    tensors = differentiable.tensors_of(value, "all_gather", "joins")
    joined = []
    for tensor in tensors:  # sizes may differ between the tensors of a nest, too
        rank = tensor.shape.rank
        if rank is None or not -rank <= axis < rank:
            raise ValueError(
                f"all_gather along axis {axis!r} of a tensor of shape {tensor.shape}: "
                "there is no such dimension; use replicator.all_gather(value), which "
                "stacks the values of all replicas"
            )
        in_front = tf.experimental.numpy.moveaxis(tensor, axis % rank, 0)
        (rows,) = differentiable.communicate(context, AllConcat(), [in_front])
        joined.append(tf.experimental.numpy.moveaxis(rows, 0, axis % rank))
    return tf.nest.pack_sequence_as(value, joined)
