"""Communicate: collectives over flat lists of tensors, with gradients of every order.

The gradient of a collective uses ``communicate``, so it can be differentiated again:
second derivatives, gradient penalties, forward mode and Jacobians communicate wherever
the first gradient does. All gradients are linear in the incoming one, which forward
mode relies on: TensorFlow transposes the gradient to get it.

On replica r, the gradient of a target t is d(sum over replicas s of t_s) / d(x_r)
(Buchlovsky et al. 2019 and ``tf.distribute``). Where the losses of replicas count by
weights w, as in the last, smaller batch of ``fit``, the target is the sum of w_s t_s:
what the gradients of the replica are multiplied by in the end, w_r, is taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.core import context as context_lib
from replicator.core.step import tensor_of

if TYPE_CHECKING:
    from replicator.collectives.kinds import CollectiveKind
    from replicator.core.context import ReplicaContext


# TensorFlow's reductions have no kernels for these: bool and 4-bit integers are reduced
# as wider integers, 8-bit floats in float32 with one rounding at the end.
_STAND_INS = {
    tf.bool: tf.uint8,
    tf.dtypes.experimental.int4: tf.int8,
    tf.dtypes.experimental.uint4: tf.uint8,
    tf.dtypes.experimental.float8_e4m3fn: tf.float32,
}
_UNKNOWN_TO_GRAPHS = tf.dtypes.experimental.float8_e5m2


def check_reducible(value: tf.Tensor | tf.IndexedSlices, op: str, caller: str) -> None:
    dtype, is_extreme = tf.as_dtype(value.dtype), op in ("min", "max")
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
    wrong = ""
    if dtype == tf.bool and not is_extreme:
        number = "tf.int32 first to count" if op == "sum" else "tf.float32 first"
        wrong = (
            "is not defined; use 'max' for any, 'min' for all, or tf.cast the value to "
            f"{number}"
        )
    elif not is_number and dtype != tf.bool:
        wrong = (
            "is not defined; reductions take numbers (and bool with 'min' and 'max'); "
            "all_gather and broadcast take any type"
        )
    elif op == "mean" and dtype.is_integer:
        wrong = (
            "would be rounded; use 'sum', or tf.cast the value to a floating type first"
        )
    elif dtype == _UNKNOWN_TO_GRAPHS:
        wrong = (
            "does not work: TensorFlow's graph optimizer does not support this type; "
            "tf.cast the value to tf.float16 first"
        )
    elif dtype.is_complex and is_extreme:
        wrong = (
            "is not defined: complex numbers have no order; reduce tf.abs of the "
            "value, or its real and imaginary parts"
        )
    if wrong:
        raise ValueError(f"{caller} {op!r} of {dtype.name} {wrong}")


def combine(values: Sequence[tf.Tensor], op: str) -> tf.Tensor:
    """Reduces dense tensors of one shape and type eagerly, as a step does."""
    stacked = tf.stack([widened(value, op) for value in values])
    return tf.cast(getattr(tf, f"reduce_{op}")(stacked, axis=0), values[0].dtype)


def stand_in(dtype: tf.DType, op: str) -> tf.DType:
    """The type in which values of ``dtype`` are reduced; usually ``dtype`` itself."""
    # The sum of float16 on the way to a mean overflows where the mean does not, and
    # divided first, small values lose bits: float32 does neither.
    if op == "mean" and dtype == tf.float16:
        return tf.float32
    return _STAND_INS.get(dtype, dtype)


def widened(tensor: tf.Tensor, op: str) -> tf.Tensor:
    return tf.cast(tensor, stand_in(tensor.dtype, op))


class Backward(NamedTuple):
    """What the gradient of a collective is computed from."""

    context: ReplicaContext
    xs: Sequence[tf.Tensor]  # Operands.
    ys: Sequence[tf.Tensor]  # Results.
    dys: Sequence[tf.Tensor]  # Gradients of the results.


def communicate(
    context: ReplicaContext, kind: CollectiveKind, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Carries out a collective so that its gradient is that of its kind."""
    if not tensors:
        return []
    places = [
        index
        for index, tensor in enumerate(tensors)
        if tensor.dtype.is_floating or tensor.dtype.is_complex
    ]
    if context.num_replicas_in_sync == 1 or not places:
        # What one replica does needs no special gradient, and integers have none:
        # leave the graph of the single device unchanged.
        return context.communicate(kind, tensors)

    results: list[tf.Tensor] = []

    def gradient(*dys: Any) -> list[tf.Tensor | None]:
        # By what the gradient of this replica's loss will be multiplied; None: by 1.
        weigh = context_lib.held("weight")
        weight = None if weigh is None else weigh()

        def weighed(grad: tf.Tensor, by: Callable[..., tf.Tensor]) -> tf.Tensor:
            # Of a mean over no examples, no number: it is not counted.
            return grad if weight is None else by(grad, tf.cast(weight, grad.dtype))

        # The gradient of a tf.gather from a result is tf.IndexedSlices.
        arriving = [tf.convert_to_tensor(dys[index]) for index in places]
        flowing = kind.gradient(
            Backward(
                context,
                xs=[tensors[index] for index in places],
                ys=[results[index] for index in places],
                dys=[weighed(dy, tf.math.multiply_no_nan) for dy in arriving],
            )
        )
        leaving = (weighed(grad, tf.math.divide_no_nan) for grad in flowing)
        grads = dict(zip(places, leaving, strict=True))
        return [grads.get(index) for index in range(len(tensors))]

    @tf.custom_gradient
    def with_gradient(*xs: tf.Tensor) -> Any:
        results[:] = context.communicate(kind, xs)
        return tuple(results), gradient

    return _tf_distribute.call_with_gradient(with_gradient, tensors, gradient)


# TensorFlow traces the body of such a loop once and then replaces each node by one that
# works on all iterations. The marker of a collective is replaced by a collective of the
# stacked operands, so n iterations communicate once; where the operand is the same in
# all iterations, by one of it alone. It has a gradient as well.


def vectorized(
    marker: str, converted: Callable[[str], tuple[tf.Tensor, bool]]
) -> tuple[tf.Tensor, bool] | None:
    """Emits the collective of all iterations; see ``vectorize_markers``."""
    if not context_lib.in_replica_context():
        return None  # a placeholder of another graph
    current = context_lib.get_replica_context()
    call = current.collective_of(marker)
    if call is None:
        return None
    operand, is_stacked = converted(call.operands[call.markers.index(marker)])
    has_rows, gives_rows = call.kind.has_rows
    if is_stacked and has_rows:
        operand = tf.experimental.numpy.swapaxes(operand, 0, 1)
    (result,) = communicate(current, call.kind, [operand])
    if is_stacked and gives_rows:
        result = tf.experimental.numpy.swapaxes(result, 0, 1)
    return result, is_stacked


_tf_distribute.vectorize_markers(vectorized)


# AutoGraph would convert every call of the library again, which would take most of the
# tracing time of a collective. No Python control flow here depends on tensors.
as_written = tf.autograph.experimental.do_not_convert


def tensors_of(value: Any, caller: str, does: str = "") -> list[Any]:
    """The leaves of a nest, which are dense if it is said what is done with them."""
    leaves = tf.nest.flatten(value)
    if does and any(isinstance(leaf, tf.IndexedSlices) for leaf in leaves):
        raise ValueError(
            f"{caller} does not take tf.IndexedSlices, because it {does} dense "
            "tensors; use tf.convert_to_tensor on the slices, or communicate their "
            "values and indices"
        )
    said = f"{caller}() takes a nest of dense tensors"
    return [
        leaf if isinstance(leaf, tf.IndexedSlices) else tensor_of(leaf, said)
        for leaf in leaves
    ]


def values_of(grad: Any) -> tf.Tensor:
    """The numbers of a dense or sparse gradient."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def with_values(grad: Any, values: tf.Tensor) -> Any:
    """A dense or sparse gradient with other numbers."""
    if not isinstance(grad, tf.IndexedSlices):
        return values
    return tf.IndexedSlices(values, grad.indices, grad.dense_shape)


def over_nest(kind: CollectiveKind, value: Any, does: str) -> Any:
    """Carries out a collective over the leaves of a nest, for users."""
    context = context_lib.require(kind.name)
    count, op = context.num_replicas_in_sync, getattr(kind, "op", None)
    tensors = sent = tensors_of(value, kind.name, does)
    if op is not None:
        for tensor in tensors:
            check_reducible(tensor, op, kind.name)
        sent = [widened(tensor, op) for tensor in tensors]
    for tensor in tensors if kind.has_rows[0] else ():
        rank = tensor.shape.rank
        rows = tensor.shape[0] if rank else None
        if not rank or (rows is not None and rows % count):
            raise ValueError(
                f"{kind.name} divides the rows of a tensor equally among "
                f"{count} replicas, but got shape {tensor.shape}; pass a "
                f"first dimension that is a multiple of {count}"
            )
    pairs = zip(tensors, communicate(context, kind, sent), strict=True)
    results = [tf.cast(y, x.dtype) for x, y in pairs]
    return tf.nest.pack_sequence_as(value, results)


def join_rows(stacked: tf.Tensor) -> tf.Tensor:
    """Joins the rows of what is stacked: ``[R, k, ...]`` becomes ``[R k, ...]``."""
    dims = tf.shape(stacked)
    return tf.reshape(stacked, tf.concat([[dims[0] * dims[1]], dims[2:]], axis=0))
