"""Which dimension of a tensor is that of the examples, followed through a graph.

A reduction along it joins the examples of a batch, though it leaves more than a single
number: a mean by column, a product of a matrix of examples with another one. So does a
softmax along it, or a sort. Only what is certain counts: behind an operation that is
not known here, or a reshape that may mix dimensions, no dimension is that of examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from replicator._tf import compat as _tf_compat
from replicator.strategy.derived import passed_on

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import tensorflow as tf

_SAME = frozenset(
    {
        *("Abs", "BiasAdd", "Cast", "CheckNumerics", "Cos", "Elu", "Erf", "Exp"),
        *("Expm1", "Floor", "Identity", "IsFinite", "LeakyRelu", "Log"),
        *("Log1p", "Neg", "OnesLike", "Reciprocal", "Relu", "Relu6"),
        *("Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Softplus"),
        *("Softsign", "Sqrt", "Square", "StopGradient", "Tan", "Tanh", "ZerosLike"),
    }
)
_PAIRS = frozenset(
    {
        *("Add", "AddN", "AddV2", "DivNoNan", "Equal", "Greater", "GreaterEqual"),
        *("Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum"),
        *("Minimum", "Mul", "MulNoNan", "NotEqual", "Pow", "RealDiv", "SelectV2"),
        *("SquaredDifference", "Sub", "Xdivy", "Xlogy"),
    }
)
# Of images: examples come first, and stay there.
_OF_IMAGES = frozenset(
    {
        *("AvgPool", "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv2dNative"),
        *("FusedBatchNormV3", "MaxPool", "ResizeBilinear", "ResizeNearestNeighbor"),
    }
)
_REDUCTIONS = frozenset({"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"})
_OF_SEVERAL = frozenset({"BatchMatMulV2", "ConcatV2", "Einsum", "Pack"})
_ALONG_LAST = frozenset({"LogSoftmax", "Softmax", "TopKV2"})
_ALONG_GIVEN = frozenset({"Cumprod", "Cumsum", "CumulativeLogsumexp"})


class BatchAxes:
    """The dimensions of the examples in one graph; operations are added in order.

    Attributes:
      is_of_examples: Whether a value depends on the examples of this replica alone.
    """

    def __init__(
        self, sources: Collection[Any], is_of_examples: Callable[[tf.Tensor], bool]
    ) -> None:
        """Prepares.

        Args:
          sources: The operations that give the batch: examples are its first dimension.
          is_of_examples: As the attribute.
        """
        self._sources = sources
        self.is_of_examples = is_of_examples
        self._axes: dict[Any, int] = {}

    def of(self, tensor: tf.Tensor) -> int | None:
        """The dimension of the examples; None if there is none, or it is not known."""
        return self._axes.get(passed_on(tensor).ref())

    def add(self, op: Any) -> None:
        """Finds that of the results of an operation."""
        if op in self._sources:
            axis: int | None = 0
        else:
            axis = self._result(op) if op.inputs and op.outputs else None
        if axis is not None:
            same = op.outputs[:1] if op.type in _OF_IMAGES else op.outputs
            self._axes |= {output.ref(): axis for output in same}

    def joins(self, op: Any) -> bool:
        """Whether an operation sums, or chooses, along the examples."""
        if op.type in _REDUCTIONS:
            axis = self.of(op.inputs[0])
            return axis is not None and axis in (_reduced(op) or ())
        if op.type == "MatMul":
            return _contracted(op) == [self.of(one) for one in op.inputs]
        if op.type == "Einsum" and len(op.inputs) == 2:  # noqa: PLR2004
            left, right, result = _labels(op)
            first, second = map(self.of, op.inputs)
            if first is None or second is None or not result:
                return False
            return left[first] == right[second] and left[first] not in result
        return False

    def mixes(self, op: Any) -> bool:
        """Whether each result of an operation is of several examples."""
        if op.type in _ALONG_LAST:
            axis = self.of(op.inputs[0])
            return axis is not None and axis == op.inputs[0].shape.rank - 1
        if op.type in _ALONG_GIVEN:
            axis, along = self.of(op.inputs[0]), _tf_compat.constant_of(op.inputs[1])
            rank = op.inputs[0].shape.rank
            return axis is not None and along is not None and axis == int(along) % rank
        return False

    def _result(self, op: Any) -> int | None:
        if op.type in _PAIRS:
            return self._of_pair(op)
        axis = self.of(op.inputs[0])
        if axis is None:
            return self._of_second(op)
        found = _MOVES.get(op.type)
        is_single = op.type not in _OF_SEVERAL
        if found is None or (
            is_single and any(map(self.is_of_examples, op.inputs[1:]))
        ):
            return None
        return found(op, axis, self)

    def _of_pair(self, op: Any) -> int | None:
        """That of operations which broadcast, if all operands of examples agree."""
        rank = op.outputs[0].shape.rank
        found = set()
        for one in op.inputs:
            axis = self.of(one)
            if axis is None:
                continue  # such as a mean by column, which is of no example
            if rank is None or one.shape.rank is None:
                return None
            found.add(rank - one.shape.rank + axis)
        return found.pop() if len(found) == 1 else None

    def _of_second(self, op: Any) -> int | None:
        """That of rows that examples choose from a table."""
        if op.type not in ("GatherV2", "ResourceGather"):
            return None
        axis = self.of(op.inputs[1])
        if axis is None or op.get_attr("batch_dims"):
            return None
        if op.type == "GatherV2":
            along = _tf_compat.constant_of(op.inputs[2])
            return None if along is None else axis + int(along)
        return axis


def _reduced(op: Any) -> set[int] | None:
    """The dimensions that a reduction leaves out; None if they are not known."""
    rank, axes = op.inputs[0].shape.rank, _tf_compat.constant_of(op.inputs[1])
    if not rank or axes is None:
        return None
    return {int(axis) % rank for axis in np.ravel(axes)}


def _same(op: Any, axis: int, axes: BatchAxes) -> int | None:
    return None if axes.mixes(op) else axis


def _of_images(op: Any, axis: int, axes: BatchAxes) -> int | None:
    del op, axes
    return axis if axis == 0 else None


def _after_reduction(op: Any, axis: int, _: BatchAxes) -> int | None:
    gone = _reduced(op)
    if gone is None or axis in gone:
        return None
    return axis if op.get_attr("keep_dims") else axis - sum(one < axis for one in gone)


def _contracted(op: Any) -> list[int]:
    """The dimensions that a product of matrices sums over."""
    return [
        0 if op.get_attr("transpose_a") else 1,
        1 if op.get_attr("transpose_b") else 0,
    ]


def _labels(op: Any) -> tuple[str, str, str]:
    """The dimensions of an equation; nothing where they are not all named."""
    equation = op.get_attr("equation").decode()
    if "." in equation or "->" not in equation:
        return "", "", ""
    operands, _, result = equation.partition("->")
    left, _, right = operands.partition(",")
    return left, right, result


def _of_matrices(op: Any, axis: int, axes: BatchAxes) -> int | None:
    if op.type == "MatMul":
        return 0 if axis != _contracted(op)[0] else None
    rank = op.inputs[0].shape.rank
    others = axes.of(op.inputs[1])
    is_other = axes.is_of_examples(op.inputs[1])
    is_outside = rank is not None and axis < rank - 2
    return axis if is_outside and (not is_other or others == axis) else None


def _of_equation(op: Any, axis: int, axes: BatchAxes) -> int | None:
    left, right, result = _labels(op)
    if len(op.inputs) != 2 or not result:  # noqa: PLR2004
        return None
    label, other = left[axis], axes.of(op.inputs[1])
    is_other = axes.is_of_examples(op.inputs[1])
    if is_other and (other is None or right[other] != label):
        return None
    return result.index(label) if label in result else None


def _of_transpose(op: Any, axis: int, _: BatchAxes) -> int | None:
    order = _tf_compat.constant_of(op.inputs[1])
    return None if order is None else [int(one) for one in order].index(axis)


def _of_new(op: Any, axis: int, _: BatchAxes) -> int | None:
    place = _tf_compat.constant_of(op.inputs[1])
    if place is None or op.outputs[0].shape.rank is None:
        return None
    return axis + (int(place) % op.outputs[0].shape.rank <= axis)


def _of_squeezed(op: Any, axis: int, _: BatchAxes) -> int | None:
    rank, gone = op.inputs[0].shape.rank, op.get_attr("squeeze_dims")
    if rank is None or not gone:
        return None
    left_out = {one % rank for one in gone}
    return None if axis in left_out else axis - sum(one < axis for one in left_out)


def _of_joined(op: Any, axis: int, axes: BatchAxes) -> int | None:
    """That of a concatenation, or a stack, of examples."""
    values = op.inputs[:-1] if op.type == "ConcatV2" else op.inputs
    own = [axes.of(one) for one in values if axes.is_of_examples(one)]
    if set(own) != {axis}:
        return None
    if op.type == "ConcatV2":
        return axis
    rank = op.outputs[0].shape.rank
    return None if rank is None else axis + (op.get_attr("axis") % rank <= axis)


def _of_reshape(op: Any, axis: int, _: BatchAxes) -> int | None:
    """First, where the first dimension stays as it is."""
    old, new = op.inputs[0].shape, op.outputs[0].shape
    if axis != 0 or not old.rank or not new.rank:
        return None
    if old[0] is not None or new[0] is not None:
        return 0 if old[0] == new[0] else None
    rest = old[1:].num_elements(), new[1:].num_elements()
    return 0 if None not in rest and rest[0] == rest[1] else None


def _of_slice(op: Any, axis: int, _: BatchAxes) -> int | None:
    """That of a slice with all examples."""
    bits = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    strides = _tf_compat.constant_of(op.inputs[3])
    if bits["ellipsis"] or strides is None:
        return None
    old = new = 0
    for place, stride in enumerate(strides):
        if bits["new_axis"] >> place & 1:
            new += 1
            continue
        is_gone = bits["shrink_axis"] >> place & 1
        if old == axis:
            is_whole = (bits["begin"] & bits["end"]) >> place & 1 and not is_gone
            return new if is_whole and int(stride) == 1 else None
        old, new = old + 1, new + (not is_gone)
    return new + axis - old


_MOVES: dict[str, Callable[[Any, int, BatchAxes], int | None]] = {
    **dict.fromkeys(_SAME | _ALONG_LAST | _ALONG_GIVEN, _same),
    **dict.fromkeys(_OF_IMAGES, _of_images),
    **dict.fromkeys(_REDUCTIONS, _after_reduction),
    "BatchMatMulV2": _of_matrices,
    "ConcatV2": _of_joined,
    "Einsum": _of_equation,
    "ExpandDims": _of_new,
    "MatMul": _of_matrices,
    "Pack": _of_joined,
    "Reshape": _of_reshape,
    "Squeeze": _of_squeezed,
    "StridedSlice": _of_slice,
    "Transpose": _of_transpose,
}
