"""Losses of ``fit`` that are no means over examples, which are refused.

Gradients of replicas are averaged there, so that a loss has to be the mean of what each
example alone says. It is not where

- the gradient is that of a sum: of losses that nothing has reduced, or of a loss with
  ``reduction="sum"``. It would be smaller by the number of replicas, which Adam hides;
- a loss is divided by a sum over the examples of the batch, as of those that a mask
  leaves: the mean of such quotients is not the quotient of the sums;
- examples of a batch are compared with each other: a replica has only its own;
- a loss is a function of such a mean, as its root is, or of the largest of all; so
  it is of means by column, and of products of columns.

``tf.distribute`` trains differently there without a word. Only the graph of the step
itself is looked at, not what its loops and branches do inside.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import batch_norm as _tf_batch_norm
from replicator._tf import handles as _tf_handles
from replicator.collectives.layers import CrossReplicaBatchNormalization
from replicator.errors import StrategyError
from replicator.step import context as context_lib
from replicator.step.lines import line_of, shown
from replicator.strategy import joins, sums
from replicator.strategy.batch_axes import BatchAxes
from replicator.strategy.derived import passed_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Operation -> which input divides.
_DIVISORS = {"RealDiv": 1, "DivNoNan": 1, "Reciprocal": 0, "Rsqrt": 0}
_DIFFERENCES = frozenset({"SquaredDifference", "Sub"})
_MATRIX = 2  # dimensions
_UPDATES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
# Whose values are not those of their input.
_OF_SHAPE = frozenset(
    {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "VariableShape", "ZerosLike"}
)


_SUM = (
    "uses what is the gradient of a sum over examples, but fit() averages over "
    "replicas, so that it would be smaller by their number; reduce the loss to a mean "
    "over the step's own batch: tf.reduce_mean(loss), or "
    "tf.nn.compute_average_loss(loss) without global_batch_size"
)
_COMPARES = (
    "compares the examples of its batch with each other, but a replica has only its "
    "own; compare with those of all replicas, as in tf.distribute."
    "get_replica_context().all_gather(rows, axis=0), or train by repl.run(), where a "
    "loss is that of the replica's own batch"
)


def check(model: Any, graph: Graph) -> None:
    """Rejects the step of a Keras model that was traced in the current graph.

    Args:
      model: The model.
      graph: The operations of the step.

    Raises:
      StrategyError: The step would not train like one device; names the line.
    """
    _check_reductions(model)
    updates = graph.updates(_not_trained(model))
    if updates:
        _warn_of_own_statistics(model)
    joined = joins.Joined(graph.axes(), _is_of_batch_norm(model))
    suspects = [
        (op, message)
        for op in graph.operations
        for message in (
            _quotient(graph, op) or _comparison(graph, op) or _function(joined, op),
        )
        if message
    ]
    trains = graph.all_before(updates) if suspects else set()
    for op, _ in suspects:
        if op in trains:
            first, message = _first(graph, joined, suspects, op)
            raise StrategyError(_at(model, first, message))
    # Last: the gradient of a sum over columns looks like that of one over examples.
    for op in sums.find(updates, graph.before, graph.is_of_examples, graph.operations):
        raise StrategyError(_at(model, op, _SUM))


def _first(
    graph: Graph, joined: joins.Joined, suspects: list[tuple[Any, str]], op: Any
) -> tuple[Any, str]:
    """The operation of a line of the user's that makes a gradient wrong.

    A gradient divides by what its loss divided by, and multiplies by what a function
    has read.
    """
    before = graph.all_before([op])
    for one, message in suspects:
        is_read = any(x.op in before for x in one.inputs if joined.is_known(x))
        if one is op or _divisor(one) is _divisor(op) or is_read:
            return one, message
    raise AssertionError("the operation is a suspect")


def _at(model: Any, op: Any, message: str) -> str:
    where = shown([line_of(op.traceback)]) or " in a layer or a loss of Keras"
    return f"the step of {type(model).__name__}{where} {message}"


def _check_reductions(model: Any) -> None:
    """Rejects a loss that sums, which the model holds or was compiled with."""
    held = [model.loss, getattr(model, "compiled_loss", None), *vars(model).values()]
    for loss in _leaves(held):
        if getattr(loss, "reduction", None) == "sum" and callable(loss):
            kind = type(loss).__name__
            raise StrategyError(
                f'{type(model).__name__} has a loss {kind}(reduction="sum"), but fit() '
                "averages over replicas, so that the gradient would be smaller by "
                f"their number; write {kind}() and multiply its weight, as in "
                "compile(loss_weights=[batch_size])"
            )


def _warn_of_own_statistics(model: Any) -> None:
    """Says which batch norm is that of each replica, as ``tf.distribute`` has it."""
    own = [
        layer.name
        for layer in _tf_batch_norm.layers_of(model)
        if getattr(layer, "synchronized", None) is False and layer.trainable
        if not isinstance(layer, CrossReplicaBatchNormalization)
    ]
    if own:
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        warnings.warn(
            f"{own[0]!r}{more} of {type(model).__name__} normalizes each replica's "
            "examples by their own statistics; for those of the whole batch, as one "
            "device has, write keras.layers.BatchNormalization(synchronized=True)",
            stacklevel=2,
        )


def _is_of_batch_norm(model: Any) -> Callable[[Any], bool]:
    """Says which operations are those of a batch norm of Keras, forward or back."""
    layers = _tf_batch_norm.layers_of(model)
    names = [re.escape(one.name) for one in layers if hasattr(one, "moving_mean")]
    # A number follows where a scope of that name has been before.
    scope = re.compile(rf"(^|/)({'|'.join(names)})(_\d+)?/")
    return lambda op: bool(names) and scope.search(op.name) is not None


def _not_trained(model: Any) -> list[Any]:
    """The variables of a model that no loss moves: statistics, seeds and metrics."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return [*model.non_trainable_variables, *metrics]


def _leaves(held: Any) -> Iterator[Any]:
    """What lists and dictionaries hold; keys of the latter need not be in an order."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple)):
        for one in held:
            yield from _leaves(one)
    else:
        yield held


def _divisor(op: Any) -> Any:
    """The tensor that an operation divides by; the operation itself if by none."""
    place = _DIVISORS.get(op.type)
    return op if place is None else op.inputs[place]


def _quotient(graph: Graph, op: Any) -> str | None:
    """What is wrong if an operation divides by a number that all examples make."""
    if op.type not in _DIVISORS:
        return None
    divisor = _divisor(op)
    if divisor.shape.rank != 0 or not graph.is_of_examples(divisor):
        return None
    return (
        "divides a loss by a sum over its own examples, as of a mask or of weights; a "
        "mean over replicas of that is not that of one device: divide by "
        'tf.distribute.get_replica_context().all_reduce("mean", total), the mean of '
        "the sums, which is the sum itself on one device"
    )


def _comparison(graph: Graph, op: Any) -> str | None:
    """What is wrong if an operation multiplies rows of a batch with each other."""
    left, right = [*op.inputs, None, None][:2]
    if right is None:
        return None
    if op.type in _DIFFERENCES:
        sides = _is_across(left), _is_across(right)
        is_transposed = sides[0] != sides[1]
    elif op.type == "MatMul":
        if op.get_attr("transpose_a"):
            return None
        is_transposed = op.get_attr("transpose_b") or right.op.type == "Transpose"
    elif op.type == "Einsum":
        is_transposed = _is_outer(op.get_attr("equation").decode())
    else:
        return None
    if not (is_transposed and graph.is_of_examples(right)):
        return None
    if not graph.is_of_examples(left):
        return None
    return _COMPARES


def _is_across(operand: tf.Tensor) -> bool:
    """Whether the examples of a matrix, or of rows, are in its second dimension."""
    op = passed_on(operand).op
    if op.type == "ExpandDims":
        axis = tf.get_static_value(op.inputs[1])
        return axis is not None and int(axis) == 0
    if op.type == "StridedSlice":
        return bool(op.get_attr("new_axis_mask") & 1)
    is_matrix = operand.shape.rank == _MATRIX
    return op.type == "Transpose" and is_matrix


def _is_outer(equation: str) -> bool:
    """Whether an equation has every row of one operand with every one of the other."""
    operands, _, result = equation.partition("->")
    left, _, right = operands.partition(",")
    firsts = left[:1], right[:1]
    return (
        firsts[0] not in right and firsts[1] not in left and set(firsts) <= set(result)
    )


def _function(joined: joins.Joined, op: Any) -> str | None:
    """What is wrong if an operation is a function of what the whole batch makes."""
    if not joined.is_changed_by(op):
        return None
    if joined.axes.mixes(op):
        return _COMPARES
    what = "numbers" if op.outputs[0].shape.rank else "a number"
    return (
        f"computes {op.type} of {what} that all examples of its batch make, as of "
        "their mean, but a replica has only its own, and the mean over replicas of "
        "that is not that of one device; make the loss a mean of what single examples "
        "say, or pass the number through replica = tf.distribute.get_replica_context() "
        'first: replica.all_reduce("mean", number) if replica else number'
    )


class Graph:
    """The operations of a step, and what depends on its examples."""

    def __init__(self, batch: Any) -> None:
        """Looks at the graph that is being traced.

        Args:
          batch: The tensors of the replica, a nest.
        """
        graph = tf.compat.v1.get_default_graph()
        self.operations = graph.get_operations()
        self._captures = {
            internal.op: external for external, internal in graph.captures
        }
        leaves = tf.nest.flatten(batch, expand_composites=True)
        self._sources = {leaf.op for leaf in leaves if leaf.shape.rank != 0}
        context: Any = context_lib.get_replica_context()  # that of a trace
        collectives = context.collectives
        self._operands = {
            marker: graph.get_operation_by_name(operand)
            for call in collectives
            for marker, operand in zip(call.markers, call.operands, strict=True)
        }
        self._is_of_examples: dict[Any, bool] = {}

    def axes(self) -> BatchAxes:
        """Finds the dimension of the examples, as operations are added."""
        return BatchAxes(self._sources, self.is_of_examples)

    def is_of_examples(self, tensor: Any) -> bool:
        """Whether a value depends on the examples of this replica alone."""
        stack, passed = [passed_on(tensor).op], set()
        while stack:
            op = stack.pop()
            if op in self._sources or self._is_of_examples.get(op):
                self._is_of_examples[tensor.op] = True
                return True
            if op in passed or op in self._is_of_examples:
                continue
            passed.add(op)
            if op.type not in _OF_SHAPE and op.name not in self._operands:
                stack += [passed_on(one).op for one in op.inputs]
        self._is_of_examples.update(dict.fromkeys(passed, False))
        return False

    def before(self, op: Any) -> list[Any]:
        """What an operation reads; of a collective's result, the operand."""
        operand = self._operands.get(op.name)
        return [one.op for one in op.inputs] if operand is None else [operand]

    def all_before(self, operations: Iterable[Any]) -> set[Any]:
        """Operations, and all that they depend on."""
        stack, found = list(operations), set()
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack += self.before(op)
        return found

    def updates(self, others: Iterable[Any]) -> list[Any]:
        """The operations whose results weights and their slots are updated with.

        Slots too: an optimizer writes them, and weights with what it reads from them.

        Args:
          others: All other variables.
        """
        handles = {id(_tf_handles.of(variable)) for variable in others}
        own = {op for op, found in self._captures.items() if id(found) not in handles}
        return [
            one.op
            for op in self.operations
            if op.type.startswith(_UPDATES) and op.inputs[0].op in own
            for one in op.inputs
        ]
