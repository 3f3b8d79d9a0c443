"""Where tensors of a traced graph are from: several may be one value in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.graph.body import producer

if TYPE_CHECKING:
    from collections.abc import Mapping

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PASSED_ON = frozenset({"Identity", "StopGradient"})


class Origins:
    """Where tensors of a graph are from: several may be one value in memory."""

    def __init__(self, graph_def: Any) -> None:
        """Reads the functions that a graph calls."""
        self._library = {
            function.signature.name: _Called(function)
            for function in graph_def.library.function
        }

    def of(self, tensor: Any) -> tuple[str, str, int | None] | None:
        """An operation, the place of its result, and its bytes.

        None for the value of a variable; bytes are None without a static shape.
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
        if count is None or tensor.dtype == tf.variant:
            return operation.name, place, None
        return operation.name, place, count * tensor.dtype.size

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
    while (node := nodes.get(producer(source))) is not None:
        if node.op == "ReadVariableOp":
            return ""
        if node.op not in _PASSED_ON:
            break
        source = node.input[0]
    return source
