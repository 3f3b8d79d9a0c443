"""What a step derives from values of one replica, derived again from joined ones.

Between the tape and the optimizer a step may clip gradients, by itself or by an option
of the optimizer, and its logs are what metrics make of their sums. One device does that
with what the whole batch gave. So the operations that lead there are copied, and read
what all replicas have in common in place of what one of them has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Derivation:
    """The operations between some tensors and values that depend on them.

    Results of collectives depend on none: they are joined already.

    Attributes:
      sources: The tensors that are reached, in the order in which values need them.
      operations: What leads from them to the values, inputs first.
    """

    def __init__(
        self, values: Sequence[tf.Tensor], is_source: Callable[[tf.Tensor], bool]
    ) -> None:
        """Looks from the values back to the first sources.

        Args:
          values: Tensors of the graph that is being built; others depend on nothing.
          is_source: Whether a tensor is one; what it depends on is not looked at then.
        """
        self.sources: list[tf.Tensor] = []
        self.operations: list[Any] = []
        self._values = values
        self._is_source = is_source
        self._of_tensor: dict[Any, bool] = {}
        self._of_operation: dict[Any, bool] = {}
        context: Any = context_lib.get_replica_context()  # that of a trace
        self._joined = {m for call in context.collectives for m in call.markers}
        for value in values:
            self._look(value)

    def depends(self, value: tf.Tensor) -> bool:
        """Whether one of the values, or what is between, depends on a source."""
        return self._of_tensor[passed_on(value).ref()]

    @property
    def has_effects(self) -> bool:
        """Whether operations do more than compute, so that copies would do it twice."""
        return any(op.op_def.is_stateful for op in self.operations)

    def again(self, joined: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Derives the values from other tensors, in the graph that is being built.

        Args:
          joined: By source, what takes its place.

        Returns:
          By value, the new one; the same where it depends on no source.
        """
        new = {s.ref(): other for s, other in zip(self.sources, joined, strict=True)}
        graph = tf.compat.v1.get_default_graph()
        for op in self.operations:
            attributes = dict(op.node_def.attr)
            attributes.pop("_class", None)  # names of operations that it was beside
            copy = graph.create_op(
                op.type,
                [new.get(passed_on(one).ref(), one) for one in op.inputs],
                [output.dtype for output in op.outputs],
                name=op.name.rpartition("/")[2],
                attrs=attributes,
                op_def=op.op_def,
            )
            pairs = zip(op.outputs, copy.outputs, strict=True)
            new |= {old.ref(): other for old, other in pairs}
        return [new.get(passed_on(value).ref(), value) for value in self._values]

    def _look(self, value: tf.Tensor) -> None:
        pending = [passed_on(value)]
        while pending:
            tensor = pending[-1]
            if tensor.ref() not in self._of_tensor:
                missing = self._missing(tensor)
                if missing:
                    pending += missing
                    continue
            pending.pop()

    def _missing(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """What has to be looked at before a tensor is known; it is if there is none."""
        of = self._of_tensor
        if not tf.is_symbolic_tensor(tensor):
            of[tensor.ref()] = False
            return []
        op = tensor.op
        if op not in self._of_operation:
            if op.name in self._joined:
                self._of_operation[op] = False
            elif self._is_source(tensor):
                of[tensor.ref()] = True
                self.sources.append(tensor)
                return []
            else:
                inputs = [*map(passed_on, op.inputs)]
                missing = [one for one in inputs if one.ref() not in of]
                if missing:
                    return missing
                self._of_operation[op] = any(of[one.ref()] for one in inputs)
                if self._of_operation[op]:
                    self.operations.append(op)
        of[tensor.ref()] = self._of_operation[op]
        return []


def passed_on(tensor: tf.Tensor) -> tf.Tensor:
    """What a function with a gradient of its own, as a collective is, has passed on.

    TensorFlow ends it with one operation that takes all results and all arguments.
    """
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "IdentityN":
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor
