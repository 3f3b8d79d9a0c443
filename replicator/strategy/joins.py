"""What a loss makes of numbers that all examples of its batch have made.

The mean over replicas of their means is the mean of the batch, and so are its sums and
multiples. It is not so of a root, a square or a product of such means, nor of the
largest number of a batch: those of replicas say nothing of those of one device. Nor is
it of what a softmax along the batch, or a sort, makes of every example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

    from replicator.strategy.batch_axes import BatchAxes

_MEANS = frozenset({"Mean", "Sum"})
_CHOICES = frozenset({"Max", "Min", "Prod"})
_CONTRACTIONS = frozenset({"Einsum", "MatMul"})
# What is linear in each operand, so that its result is a mean where one of them is.
_LINEAR = frozenset(
    {
        *("Add", "AddN", "AddV2", "BiasAdd", "BroadcastTo", "Cast", "CheckNumerics"),
        *("ConcatV2", "ExpandDims", "Identity", "Mean", "Neg", "Pack", "Reshape"),
        *("Squeeze", "StopGradient", "Sub", "Sum", "Tile"),
    }
)
_PRODUCTS = frozenset({"MatMul", "Mul", "MulNoNan"})
_FUNCTIONS = frozenset(
    {
        *("Abs", "Cosh", "Elu", "Erf", "Exp", "Expm1", "Log", "Log1p", "Maximum"),
        *("Minimum", "Pow", "Relu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt"),
        *("Square", "SquaredDifference", "Tanh", "Xlogy"),
    }
)


class Joined:
    """Which tensors of a graph are made of means over the batch.

    Attributes:
      axes: The dimension of the examples, of the operations that were asked for.
    """

    def __init__(self, axes: BatchAxes, is_excepted: Callable[[Any], bool]) -> None:
        """Prepares.

        Args:
          axes: Finds the dimension of the examples.
          is_excepted: Whether an operation is a batch norm's, whose statistics are to
            be those of each replica.
        """
        self.axes = axes
        self._is_of_examples = axes.is_of_examples
        self._is_excepted = is_excepted
        self._known: dict[Any, bool] = {}

    def is_known(self, tensor: tf.Tensor) -> bool:
        """Whether a value is made of means, of those that were asked for."""
        return self._known.get(tensor.op, False)

    def is_changed_by(self, op: Any) -> bool:
        """Whether an operation makes more of means than their sums and multiples.

        To be asked in the order of the operations.
        """
        self.axes.add(op)
        result = op.outputs[0] if op.outputs else None
        if result is None or not result.dtype.is_floating:
            return False
        inputs = [one for one in op.inputs if self._known.get(one.op)]
        if op.type in _LINEAR:
            self._known[op] = bool(inputs)
        if op.type in _CONTRACTIONS and self.axes.joins(op):
            self._known[op] = True
            return bool(inputs)
        if op.type in _PRODUCTS and inputs:
            if all(map(self._is_of_examples, op.inputs)):
                return True
            self._known[op] = True
        if op.type in ("DivNoNan", "RealDiv") and self.is_known(op.inputs[0]):
            if self._is_of_examples(op.inputs[1]):
                return True
            self._known[op] = True
        if op.type in _MEANS | _CHOICES and (is_of_all(op) or self.axes.joins(op)):
            is_own = self._is_of_examples(op.inputs[0])
            is_joined = is_own and not self._is_excepted(op)
            self._known[op] = is_joined
            return is_joined and op.type in _CHOICES
        return self.axes.mixes(op) or (op.type in _FUNCTIONS and bool(inputs))


def is_of_all(op: Any) -> bool:
    """Whether a reduction leaves a single number of all that it gets.

    One of a tensor without dimensions, which gradients have, leaves what it gets.
    """
    rank = op.inputs[0].shape.rank
    if not rank:
        return False
    axes = tf.get_static_value(op.inputs[1])
    return axes is not None and {int(a) % rank for a in axes.ravel()} == {*range(rank)}
