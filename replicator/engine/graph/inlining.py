"""Inlining: the nodes of a called function in place of the call.

TensorFlow does this when it instantiates a function, and before that makes a graph of
every function that the function may call, twice, to look for what is meant for TPUs.
Of a step on many replicas that takes longer than to write its nodes here. It also adds
an ``Identity`` per argument and result of a call, which are a third of the nodes of a
pipeline (record 0111).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.engine.graph.body import producer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# As TensorFlow calls them.
_BEGIN, _END = "input_control_node", "output_control_node"
_NOTHING: Mapping[str, str] = types.MappingProxyType({})


def inline(function: Any, name: str, callees: Iterable[Any]) -> Any:
    """Inlines calls, and calls in what is inlined.

    Nodes get the names that TensorFlow would give them, and those of a function without
    a device get that of the call.

    Args:
      function: A ``FunctionDef``.
      name: Of the new function.
      callees: The ``FunctionDef``s whose calls are inlined.

    Returns:
      The new ``FunctionDef``.
    """
    inlined = _tf_compat.FunctionDef()
    inlined.CopyFrom(function)
    inlined.signature.name = name
    del inlined.node_def[:]
    calls = _Calls(inlined.node_def, callees)
    calls.add(function.node_def)
    for key, text in function.ret.items():
        inlined.ret[key] = calls.tensor(text)
    calls.return_where_called({producer(text) for text in function.ret.values()})
    for key, text in function.control_ret.items():
        inlined.control_ret[key] = calls.end(text)
    calls.connect()
    return inlined


class _Calls:
    """Nodes of a function and of what it calls, under their new names."""

    def __init__(self, nodes: Any, callees: Iterable[Any]) -> None:
        self._nodes = nodes
        self._callees = {callee.signature.name: callee for callee in callees}
        self._results: dict[str, str] = {}
        self._ends: dict[str, list[str]] = {}
        self._awaited: list[str] = []

    def add(
        self,
        nodes: Iterable[Any],
        prefix: str = "",
        given: Mapping[str, str] = _NOTHING,
        waits: Sequence[str] = (),
        device: str = "",
    ) -> None:
        """Adds the nodes of a function.

        Args:
          nodes: They are copied.
          prefix: What their names begin with.
          given: What stands for the arguments of the function; by default they do.
            A node may wait for an argument, too.
          waits: Control edges to the call. Nodes that take arguments, or nothing, and
            calls get them, so that nothing runs before.
          device: Of the call.
        """
        for node in nodes:
            texts, is_first = [], not node.input or node.op in _CALLS
            for text in node.input:
                name = text.removeprefix("^")
                is_argument = name in given
                is_first |= is_argument
                value = given[name] if is_argument else f"{prefix}{name}"
                texts.append(value if name == text else f"^{value}")
            if is_first:
                texts += waits
            new, place = f"{prefix}{node.name}", node.device or device
            callee = self._callees.get(_called(node))
            if callee is not None:
                self._add_call(new, callee, texts, place)
                continue
            copy = self._nodes.add()
            copy.CopyFrom(node)
            copy.name, copy.device = new, place
            del copy.input[:]
            copy.input.extend(texts)

    def tensor(self, text: str) -> str:
        """What stands for a tensor, which may be a result of a call."""
        while text in self._results:
            text = self._results[text]
        return text

    def return_where_called(self, returned: Collection[str]) -> None:
        """Lets what nodes return be where the caller is, as results of a call are.

        TensorFlow leaves it where it was made, if only identities are in between.
        """
        for node in self._nodes:
            is_result = node.op == "Identity" and node.input[0] in self._results
            if is_result and node.name in returned:
                node.op = "IdentityN"
                node.attr["T"].list.type.append(node.attr["T"].type)

    def end(self, name: str) -> str:
        """The node to wait for in place of a node, which may be a call."""
        if name not in self._ends:
            return name
        if name not in self._awaited:
            self._awaited.append(name)
        return f"{name}/{_END}"

    def connect(self) -> None:
        """Replaces calls in the inputs of all nodes."""
        for node in self._nodes:
            for index, text in enumerate(node.input):
                if not text.startswith("^"):
                    if text in self._results:
                        node.input[index] = self.tensor(text)
                elif ":" in text:  # what stands for an argument
                    node.input[index] = f"^{producer(self.tensor(text[1:]))}"
                elif text[1:] in self._ends:
                    node.input[index] = f"^{self.end(text[1:])}"
        for call in self._awaited:  # it grows: what a call waits for may be a call
            node = self._nodes.add(name=f"{call}/{_END}", op="NoOp")
            node.input.extend(f"^{self.end(name)}" for name in self._ends[call])

    def _add_call(
        self, call: str, callee: Any, texts: Sequence[str], device: str
    ) -> None:
        data = [text for text in texts if not text.startswith("^")]
        waits = [text for text in texts if text.startswith("^")]
        if len(waits) > 1:  # one edge to each node that waits
            begin = f"{call}/{_BEGIN}"
            node = self._nodes.add(name=begin, op="NoOp", device=device)
            node.input.extend(waits)
            waits = [f"^{begin}"]
        names = (arg.name for arg in callee.signature.input_arg)
        given = dict(zip(names, data, strict=True))
        for index, arg in enumerate(callee.signature.output_arg):
            text = callee.ret[arg.name]
            self._results[f"{call}:output:{index}"] = (
                f"{call}/{text}" if ":" in text else given[text]
            )
        self._ends[call] = [f"{call}/{name}" for name in callee.control_ret.values()]
        self.add(callee.node_def, f"{call}/", given, waits, device)


def _called(node: Any) -> str:
    return str(node.attr["f"].func.name) if node.op in _CALLS else ""
