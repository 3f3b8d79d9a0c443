"""Inlining: the nodes of a called function in place of the call.

TensorFlow does this when it instantiates a function, and before that makes a graph of
every function that the function may call, twice, to look for what is meant for TPUs.
Of a step on many replicas that takes longer than to write its nodes here. It also adds
an ``Identity`` per argument and result of a call, which are a third of the nodes of a
pipeline.

What all calls of a pipeline's tasks have in common is written once.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.engine.graph.body import producer, rewrite
from replicator.engine.graph.common import Common
from replicator.engine.graph.effects import EffectTable
from replicator.engine.graph.tasks import calls_task, is_task

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# As TensorFlow calls them.
_BEGIN, _END = "input_control_node", "output_control_node"


def inline(function: Any, name: str, callees: Iterable[Any]) -> Any:
    """Inlines calls, and calls in what is inlined.

    Nodes get the names that TensorFlow would give them, and those of a function without
    a device get that of the call.
    """
    inlined = _tf_compat.FunctionDef()
    inlined.CopyFrom(function)
    inlined.signature.name = name
    del inlined.node_def[:]
    calls = _Calls(inlined.node_def, callees)
    calls.add(_Frame(function=function))
    for key, text in function.ret.items():
        inlined.ret[key] = calls.tensor(text)
    calls.return_where_called({producer(text) for text in function.ret.values()})
    for key, text in function.control_ret.items():
        inlined.control_ret[key] = calls.end(text)
    calls.connect()
    return inlined


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Frame:
    """A function that is being inlined."""

    function: Any  # The ``FunctionDef``.
    prefix: str = ""  # What the names of its nodes begin with.
    # What stands for its arguments; by default they do. A node may wait for an
    # argument, too.
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Control edges to the call. Nodes that take arguments, or nothing, and calls get
    # them, so that nothing runs before.
    waits: Sequence[str] = ()
    device: str = ""  # Of the call.
    # What it has in common with other functions; None if nothing.
    common: Common | None = None
    # By node, the common node that is used in its place.
    instead: dict[str, str] = dataclasses.field(default_factory=dict)
    # What its nodes so far take.
    used: set[str] = dataclasses.field(default_factory=set)

    def new(self, text: str) -> str:
        """The new name of a node, of a tensor, or of what stands for an argument."""
        if text in self.given:
            return self.given[text]
        if self.instead:
            name, colon, port = text.partition(":")
            if name in self.instead:
                return f"{self.instead[name]}{colon}{port}"
        return f"{self.prefix}{text}"

    def inputs(self, node: Any) -> tuple[list[str], bool]:
        """The inputs of a node, and whether it waits for what the call waits for."""
        texts, is_first = [], not node.input or node.op in _CALLS
        for text in node.input:
            name = text.removeprefix("^")
            is_first |= name in self.given
            texts.append(self.new(text) if name == text else f"^{self.new(name)}")
        if self.common is not None:
            is_first |= self.common.are_common(texts)
        return texts, is_first

    def share(self, node: Any, name: str, texts: Sequence[str], device: str) -> str:
        """The common node that is used in place of a node; empty if there is none."""
        if self.common is None:
            return ""
        self.used.update(map(producer, node.input))
        if node.name in self.used:
            return ""
        known = self.common.name(
            node, name, texts, device, is_awaited=node.name in self.awaited
        )
        if known:
            self.instead[node.name] = known
        return known

    @functools.cached_property
    def awaited(self) -> frozenset[str]:
        """What nodes of the function wait for."""
        texts = (text for node in self.function.node_def for text in node.input)
        return frozenset(text[1:] for text in texts if text.startswith("^"))


class _Calls:
    """Nodes of a function and of what it calls, under their new names."""

    def __init__(self, nodes: Any, callees: Iterable[Any]) -> None:
        self._nodes = nodes
        self._callees = {callee.signature.name: callee for callee in callees}
        self._effects = EffectTable(self._callees.values())
        self._has_tasks = any(map(is_task, self._callees.values()))
        self._results: dict[str, str] = {}
        self._ends: dict[str, list[str]] = {}
        self._awaited: list[str] = []

    def add(self, frame: _Frame) -> None:
        """Adds the nodes of a function."""
        nodes = frame.function.node_def
        common = frame.common  # of the tasks that it calls
        if common is None and self._has_tasks and any(map(calls_task, nodes)):
            common = Common(nodes, frame.given, frame.waits, self._effects)
        for node in nodes:
            texts, is_first = frame.inputs(node)
            name, place = f"{frame.prefix}{node.name}", node.device or frame.device
            waits = frame.waits if is_first else ()
            known = frame.share(node, name, texts, place)
            if known not in ("", name):
                continue
            if frame.common is not None and known:
                waits = frame.common.waits_of(texts)
            texts += waits
            callee = self._callees.get(_called(node))
            if callee is not None:
                self._add_call(name, callee, texts, place, common)
                continue
            rewrite(self._nodes.add(), node, name, place, texts)

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
        self,
        call: str,
        callee: Any,
        texts: Sequence[str],
        device: str,
        common: Common | None,
    ) -> None:
        data = [self.tensor(text) for text in texts if not text.startswith("^")]
        waits = [text for text in texts if text.startswith("^")]
        begin = f"{call}/{_BEGIN}"
        # One edge to each node that waits.
        if len(waits) > 1 or (waits and common is not None):
            node = self._nodes.add(name=begin, op="NoOp", device=device)
            node.input.extend(waits)
            waits = [f"^{begin}"]
        names = (arg.name for arg in callee.signature.input_arg)
        frame = _Frame(
            function=callee,
            prefix=f"{call}/",
            given=dict(zip(names, data, strict=True)),
            waits=waits,
            device=device,
            common=common,
        )
        self.add(frame)
        for index, arg in enumerate(callee.signature.output_arg):
            text = callee.ret[arg.name]
            self._results[f"{call}:output:{index}"] = frame.new(text)
        self._ends[call] = [*map(frame.new, callee.control_ret.values())]
        if frame.instead and waits:  # common nodes do not wait for this call's turn
            self._ends[call].append(begin)


def _called(node: Any) -> str:
    return str(node.attr["f"].func.name) if node.op in _CALLS else ""
