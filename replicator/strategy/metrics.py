"""What a step of a Keras model adds to its metrics.

``fit`` adds up what the replicas have in the variables of a metric. Where these are
sums over examples, that is what one device has. A metric that was given a mean of the
batch, or has made one, gets that of the whole batch; one whose state is no sum, such as
the largest error so far, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import handles as _tf_handles
from replicator.errors import StrategyError
from replicator.step.lines import line_of, shown
from replicator.variables.kinds import Kind, declare_summed, declared_kind, is_summed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from replicator.strategy.means import Graph
    from replicator.strategy.whole_batch import WholeBatch

_UPDATES = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"})
_PASSED_ON = frozenset({"Cast", "Identity", "Reshape"})


def declare(model: Any) -> None:
    """Makes variables that metrics keep, but not by ``add_variable``, sums as well."""
    for metric in _each(model.metrics):
        for held in vars(metric).values():
            if isinstance(held, tf.Variable) and not held.trainable:
                is_plain = held.synchronization == tf.VariableSynchronization.AUTO
                if is_plain and held.dtype.is_floating:
                    declare_summed(held)


class MetricUpdates:
    """The updates of metrics in the step that is being traced.

    Attributes:
      names: The names in the step of what holds a variable, by variable.
    """

    def __init__(
        self, model: Any, graph: Graph, whole: WholeBatch, num_replicas: int
    ) -> None:
        """Looks for them.

        Args:
          model: The Keras model whose step it is.
          graph: Its operations.
          whole: What all replicas make of numbers.
          num_replicas: Those that have a part of each sum.

        Raises:
          StrategyError: A metric keeps what is no sum over examples.
        """
        self._model = model
        self._updates = [op for op in graph.operations if op.type in _UPDATES]
        self._whole = whole
        self._num_replicas = num_replicas
        self._changes: dict[str, list[tuple[int, tf.Tensor]]] = {}
        self.names: dict[str, Any] = {}
        captures = {
            id(outer): inner.op.name
            for outer, inner in _tf_compat.current_graph().captures
        }
        self._order = {op: number for number, op in enumerate(graph.operations)}
        for metric in _each(model.metrics):
            own = {
                captures[id(_tf_handles.of(variable))]: variable
                for variable in _summed(metric)
                if id(_tf_handles.of(variable)) in captures
            }
            self.names |= own
            self._look(metric, own)

    def change(self, read: tf.Tensor) -> tf.Tensor | None:
        """What the variable that was read here gets besides, after the step."""
        changes = self._changes.get(read.op.inputs[0].op.name, ())
        own = [
            by for at, by in changes if at < self._order.get(read.op, len(self._order))
        ]
        return tf.add_n(own) if own else None

    def apply(self) -> None:
        """Changes the variables, after what the step itself has added."""
        for name, changes in self._changes.items():
            self.names[name].assign_add(tf.add_n([by for _, by in changes]))

    def _look(self, metric: Any, own: dict[str, Any]) -> None:
        was_mean = False
        updates = [op for op in self._updates if op.inputs[0].op.name in own]
        for op in updates:
            added = self._added(metric, op)
            if added is None or added.shape.rank != 0:
                was_mean = False
            elif not self._whole.is_made_here(added):
                # What Mean counts: one batch, if it was given a number of one.
                if was_mean and not self._whole.are_equal:
                    self._change(op, added / self._num_replicas - added)
            else:
                was_mean = self._whole.degree(added) == 0
                is_alone = len(own) == 1
                is_same = self._whole.are_equal and self._whole.is_linear(added)
                if not was_mean or (is_same and not is_alone):
                    continue
                (new,) = [added] if is_same else self._whole.again([added])
                if new is None:
                    continue
                if is_alone or not self._whole.are_equal:
                    new /= self._num_replicas
                self._change(op, new - added)

    def _change(self, op: Any, by: tf.Tensor) -> None:
        changes = self._changes.setdefault(op.inputs[0].op.name, [])
        changes.append((self._order[op], by))

    def _added(self, metric: Any, op: Any) -> tf.Tensor | None:
        """What an operation adds to a variable; None if that is several, or nothing.

        Raises:
          StrategyError: It does not add.
        """
        holder, value = op.inputs
        if op.type == "AssignVariableOp":
            added = list(_besides(value, holder))
            if not added and _is_constant(value):
                return None
            is_sum = bool(added)
        else:
            added, is_sum = [value], True
        made = _made_of(holder)
        if not is_sum or any(one.op in made for one in added):
            raise self._refused(metric, op)
        return added[0] if len(added) == 1 and "Sub" not in op.type else None

    def _refused(self, metric: Any, op: Any) -> StrategyError:
        where = shown([line_of(op.traceback)])
        return StrategyError(
            f"the metric {metric.name!r} of {type(self._model).__name__}{where} "
            "assigns what is no sum over examples, but fit() adds up what the replicas "
            'have; write add_variable(..., aggregation="only_first_replica"), and '
            "assign what the examples of all replicas make: replica = tf.distribute."
            "get_replica_context(); rows = replica.all_gather(rows, axis=0) if replica "
            "else rows"
        )


def _inner(metric: Any) -> list[Any]:
    """The metrics that one holds, as what was passed to ``compile`` does."""
    return list(getattr(metric, "metrics", None) or ())


def _each(metrics: Iterable[Any]) -> Iterator[Any]:
    """Metrics, and those within them."""
    for metric in metrics:
        yield metric
        yield from _each(_inner(metric))


def _summed(metric: Any) -> Iterator[Any]:
    """The variables of a metric that have a part of a sum on each replica."""
    plain = [held for held in vars(metric).values() if isinstance(held, tf.Variable)]
    others = {id(held) for one in _inner(metric) for held in one.variables}
    of_keras = [one for one in metric.variables if id(one) not in others]
    held = {id(one): one for one in map(_tf_compat.unwrap, [*of_keras, *plain])}
    for variable in held.values():
        if declared_kind(variable) is Kind.LOCAL and is_summed(variable):
            yield variable


def _is_constant(value: tf.Tensor) -> bool:
    """Whether a value is known while tracing, as that of a reset is."""
    is_known = tf.get_static_value(value) is not None
    return is_known or value.op.type in ("Fill", "ZerosLike")


def _is_read(tensor: tf.Tensor, holder: tf.Tensor) -> bool:
    """Whether a tensor is the value of the variable that a tensor holds."""
    while tensor.op.type in _PASSED_ON:
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp" and tensor.op.inputs[0] is holder


def _made_of(holder: tf.Tensor) -> set[Any]:
    """The operations that the value of a variable reaches."""
    pending = [op for op in holder.consumers() if op.type == "ReadVariableOp"]
    found: set[Any] = set()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += [one for tensor in op.outputs for one in tensor.consumers()]
    return found


def _besides(value: tf.Tensor, holder: tf.Tensor) -> list[tf.Tensor]:
    """What is added to the value that a variable has had; nothing if it is no sum."""
    while value.op.type in _PASSED_ON:
        value = value.op.inputs[0]
    if value.op.type not in ("Add", "AddV2"):
        return []
    for old, other in (value.op.inputs, reversed(value.op.inputs)):
        if _is_read(old, holder):
            return [other]
        found = _besides(old, holder)
        if found:
            return [*found, other]
    return []
