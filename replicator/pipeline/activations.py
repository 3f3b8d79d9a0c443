"""Activations: what each stage keeps between its tasks, by liveness over the schedule.

A result of a forward pass is kept on the device of its stage until the last task that
uses it, and a copy of it on the device of each other stage that does. Values of
variables are no activations, whether a function returns them or not; nor is the batch,
which is there for the whole step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step.stage_names import TASK, task_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replicator.pipeline.schedule import Task

_FORWARD = re.compile(r"stage_\d+_F\d+$")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PASSED_ON = frozenset({"Identity", "StopGradient"})


def peaks(graph: Any, schedule: Sequence[Sequence[Task]]) -> list[int]:
    """Returns the most bytes of activations that each stage keeps at one time.

    What a task needs only while it runs is not counted, nor what has no static shape.

    Args:
      graph: The step that a pipeline was emitted to.
      schedule: The tasks of each stage, in order.
    """
    places = {
        task_name(stage, task): (stage, index)
        for stage, own in enumerate(schedule)
        for index, task in enumerate(own)
    }
    origins = _Origins(graph)
    users: dict[Any, list[tuple[int, int]]] = {}
    for operation in graph.get_operations():
        if _task_of(operation) in places:
            for tensor in operation.inputs:
                origin = origins.of(tensor)
                if origin is not None:
                    users.setdefault(origin, []).append(places[_task_of(operation)])
    alive = [[0] * len(own) for own in schedule]
    for (name, _, num_bytes), uses in users.items():
        producer = _task_of(graph.get_operation_by_name(name))
        if _FORWARD.match(producer):
            for stage, first, last in _lives(places[producer], uses):
                for index in range(first, last + 1):
                    alive[stage][index] += num_bytes
    return [max(own, default=0) for own in alive]


def _lives(
    made: tuple[int, int], uses: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields each stage that keeps a result, from which task on, and to which."""
    stage, index = made
    for other in {stage, *(user for user, _ in uses)}:
        own = [at for user, at in uses if user == other]
        first = index if other == stage else min(own)
        # What no later task needs is gone with its own.
        if own and max(own) > first:
            yield other, first, max(own)


def _task_of(operation: Any) -> str:
    match = TASK.match(operation.name)
    return match[0] if match else ""


class _Origins:
    """Where tensors of a graph are from: several may be one value in memory."""

    def __init__(self, graph: Any) -> None:
        self._library = {
            function.signature.name: _Called(function)
            for function in graph.as_graph_def().library.function
        }

    def of(self, tensor: Any) -> tuple[str, str, int] | None:
        """An operation, the place of its result, and its bytes.

        None for the value of a variable, and for what has no static shape.
        """
        operation, place = tensor.op, str(tensor.value_index)
        if operation.type in _PASSED_ON:
            return self.of(operation.inputs[0])
        if operation.type == "ReadVariableOp" or tensor.dtype == tf.resource:
            return None
        function = self._function(operation)
        if function is not None:
            place = function.sources[tensor.value_index]
            if place in function.arguments:
                return self.of(operation.inputs[function.arguments.index(place)])
            if not place:
                return None
        count = tensor.shape.num_elements()
        return (
            None
            if count is None
            else (operation.name, place, count * tensor.dtype.size)
        )

    def _function(self, operation: Any) -> Any:
        if operation.type not in _CALLS:
            return None
        return self._library.get(operation.get_attr("f").name)


class _Called:
    """A function of the graph.

    Attributes:
      arguments: Their names.
      sources: By result, what is returned: an argument, the result of a node, or
        nothing for the value of a variable.
    """

    def __init__(self, function: Any) -> None:
        nodes = {node.name: node for node in function.node_def}
        signature = function.signature
        self.arguments = [argument.name for argument in signature.input_arg]
        self.sources = [
            _source(nodes, function.ret[result.name]) for result in signature.output_arg
        ]


def _source(nodes: Mapping[str, Any], source: str) -> str:
    while (node := nodes.get(source.partition(":")[0])) is not None:
        if node.op == "ReadVariableOp":
            return ""
        if node.op not in _PASSED_ON:
            break
        source = node.input[0]
    return source
