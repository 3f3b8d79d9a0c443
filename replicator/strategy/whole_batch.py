"""Numbers of a step that are made of the whole batch: means of means, roots, ratios.

A step may give a metric, or its logs, what its own examples make together, such as a
mean or the root of one. What one device has there is made again: of the reductions of
all replicas, the operations behind them are copied.

The size of a batch may be a constant of the graph: a sum that is divided by one is
taken for a mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import reductions
from replicator.strategy.derived import Derivation, passed_on
from replicator.strategy.joins import is_of_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MEANS = frozenset({"Mean", "Sum"})
_CHOICES = frozenset({"Max", "Min"})
_DIVISIONS = frozenset({"DivNoNan", "RealDiv"})
_SHAPED = frozenset({"Cast", "ExpandDims", "Identity", "Neg", "Reshape", "Squeeze"})
_SHAPES = frozenset({"Shape", "Size"})


class WholeBatch:
    """What the examples of all replicas make, in the step that is being traced.

    Attributes:
      are_equal: Whether all replicas have the same number of examples.
    """

    def __init__(
        self,
        is_of_examples: Callable[[tf.Tensor], bool],
        num_replicas: int,
        *,
        are_equal: bool,
    ) -> None:
        """Prepares.

        Args:
          is_of_examples: Whether a value depends on the examples of this replica alone.
          num_replicas: Those that share a batch.
          are_equal: As the attribute.
        """
        self._is_of_examples = is_of_examples
        self._num_replicas = num_replicas
        self.are_equal = are_equal

    def again(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Makes numbers of the whole batch.

        Returns:
          By value, the new one. None for what is not made of reductions alone, and for
          what is the mean over replicas.
        """
        others = [one for one in values if not self._is_mean_of_replicas(one)]
        made = {
            one.ref(): None if is_mixed else new
            for one, (new, is_mixed) in zip(others, self._again(others), strict=True)
        }
        return [made.get(value.ref()) for value in values]

    def _is_mean_of_replicas(self, value: tf.Tensor) -> bool:
        if not (self.are_equal and tf.is_symbolic_tensor(value)):
            return False
        while value.op.type in _SHAPED:
            value = passed_on(value.op.inputs[0])
        return value.op.type != "Sum" and self.is_linear(value)

    def _again(
        self, values: Sequence[tf.Tensor]
    ) -> list[tuple[tf.Tensor | None, bool]]:
        """As ``again``, and whether own examples are in the result as well."""
        found = Derivation(values, self._is_source)
        if found.has_effects or not found.sources:
            return [(None, True)] * len(values)
        inner = [_operand(source.op) for source in found.sources]
        # Such as the mean that a standard deviation is made of.
        made = [new for new, _ in self._again(inner)]
        both = [
            old if new is None else new for old, new in zip(inner, made, strict=True)
        ]
        new = found.again(self._joined(found.sources, both))
        mixed: set[Any] = set()
        for op in found.operations:
            for one in map(passed_on, op.inputs):
                is_own = not found.depends(one) and self._is_of_examples(one)
                mixed |= {op} if is_own or one.op in mixed else set()
        return [
            (other, passed_on(value).op in mixed)
            if found.depends(value)
            else (None, True)
            for value, other in zip(values, new, strict=True)
        ]

    def degree(self, value: tf.Tensor) -> int | None:
        """How a number grows with the batch: 0 as a mean, 1 as a sum, None if unknown.

        Of a function of means, such as a root of one, it is that of a mean.
        """
        value = passed_on(value)
        op = value.op
        if self._is_source(value):
            return int(op.type in ("Cast", "Sum"))
        own = [one for one in op.inputs if self.is_made_here(one)]
        if not own or value.shape.rank != 0:
            return None
        degrees = [self.degree(one) for one in own]
        known = [one for one in degrees if one is not None]
        if len(known) < len(degrees):
            return None
        if op.type == "Mul":
            return sum(known)
        if op.type in _DIVISIONS:
            below = known.pop() if self.is_made_here(op.inputs[1]) else 0
            return sum(known) - below
        return known[0] if len({*known}) == 1 else None

    def is_linear(self, value: tf.Tensor) -> bool:
        """Whether a number is a multiple of reductions, or a sum of such."""
        value = passed_on(value)
        op = value.op
        if self._is_source(value):
            return op.type not in _CHOICES
        own = [one for one in op.inputs if self.is_made_here(one)]
        if op.type == "Mul" or op.type in _DIVISIONS:
            is_kept = len(own) == 1 and (op.type == "Mul" or own[0] is op.inputs[0])
        else:
            is_kept = op.type in (*_SHAPED, *_MEANS, "AddV2", "Sub")
        return is_kept and all(map(self.is_linear, own))

    def is_made_here(self, tensor: tf.Tensor) -> bool:
        """Whether a value depends on the examples, or on how many they are."""
        tensor = passed_on(tensor)
        if self._is_of_examples(tensor) or self._is_source(tensor):
            return True
        return tensor.shape.rank == 0 and any(map(self.is_made_here, tensor.op.inputs))

    def _is_source(self, tensor: tf.Tensor) -> bool:
        op = tensor.op
        if op.type in _MEANS | _CHOICES:
            is_integer = tensor.dtype.is_integer and op.type != "Mean"
            is_number = (tensor.dtype.is_floating or is_integer) and is_of_all(op)
            return is_number and self._is_of_examples(op.inputs[0])
        if op.type in _DIVISIONS:
            total, size = (passed_on(one).op for one in op.inputs)
            if total.type != "Sum" or not self._is_source(total.outputs[0]):
                return False
            known = _tf_compat.constant_of(size.outputs[0])
            shape = total.inputs[0].shape
            number = 0 if known is None else int(known)
            is_whole = number == known and shape.is_fully_defined()
            return (
                is_whole
                and number > 0
                and (number % shape[0] == 0 == shape.num_elements() % number)
            )
        return op.type == "Cast" and self._is_size(op)

    def _is_size(self, op: Any) -> bool:
        """Whether a number of examples becomes a floating point number here."""
        number = op.inputs[0]
        if not (op.outputs[0].dtype.is_floating and number.dtype.is_integer):
            return False
        if self.are_equal or number.shape.rank != 0:
            return False
        pending = [number.op]
        while pending:
            one = pending.pop()
            if one.type in _SHAPES:
                return self._is_of_examples(one.inputs[0])
            pending += [tensor.op for tensor in one.inputs]
        return False

    def _joined(
        self, sources: Sequence[tf.Tensor], values: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """By source, what all replicas make of values."""
        parts: list[tf.Tensor] = []
        for source, value in zip(sources, values, strict=True):
            kind, dtype = source.op.type, _summed_in(source.dtype)
            if kind == "Cast":
                parts.append(tf.cast(value, dtype))
            elif kind not in _CHOICES:
                parts.append(tf.reduce_sum(tf.cast(value, dtype)))
                parts += [tf.cast(tf.size(value), dtype)] if kind == "Mean" else []
        totals = iter(reductions.all_sum(parts) if parts else ())
        joined = []
        for source, value in zip(sources, values, strict=True):
            kind = source.op.type
            if kind == "Max":
                found = reductions.all_max(tf.reduce_max(value))
            elif kind == "Min":
                found = reductions.all_min(tf.reduce_min(value))
            elif kind == "Mean":
                found = tf.math.divide_no_nan(next(totals), next(totals))
            elif kind in _DIVISIONS:
                total = next(totals)
                size = tf.cast(source.op.inputs[1], total.dtype)
                found = total / (size * self._num_replicas)
            else:
                found = next(totals)
            joined.append(tf.reshape(tf.cast(found, source.dtype), tf.shape(source)))
        return joined


def _summed_in(dtype: tf.DType) -> tf.DType:
    """The type in which sums over a batch are finite, and those of integers exact."""
    is_wide = dtype == tf.float64 or dtype.is_integer
    return tf.float64 if is_wide else tf.float32


def _operand(op: Any) -> tf.Tensor:
    """What a reduction reduces; the size of a batch as an integer."""
    if op.type == "Cast":
        return op.inputs[0]
    reduction = passed_on(op.inputs[0]).op if op.type in _DIVISIONS else op
    return passed_on(reduction.inputs[0])
