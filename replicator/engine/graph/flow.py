"""Flow: which sources reach which tensors of a graph, also through functions.

Sources are inputs of a graph, each a bit of a mask; the mask of a tensor says which of
them its value depends on. Branches and loops are functions that a node calls, and are
followed output by output: the output of a layer that normalizes by its batch does not
depend on the moving averages that the same branch updates. What a variable holds
reaches what reads it. Values that never depend on the numbers of their input, such as
its shape, end the flow.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator._tf.batch_norm import OF_NO_EXAMPLE
from replicator.engine.graph.body import Ref
from replicator.engine.graph.effects import READ_OPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replicator.engine.graph.body import Body

# The source of what differs from call to call: random numbers, files, Python.
VARIES = 1
_NEVER_OF_NUMBERS = frozenset(
    {
        "OnesLike",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "VarIsInitializedOp",
        "VariableShape",
        "ZerosLike",
    }
)
_LOOPS = frozenset({"StatelessWhile", "While"})
_BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Outputs of batch norm that the given mean and variance reach, while it trains.
_RUNNING = frozenset({"batch_mean:0", "batch_variance:0"})


def trace_sources(body: Body, sources: Mapping[str, int]) -> Reached:
    """Follows sources through a graph."""
    reached = Reached(_Functions(body.library), sources)
    for node in body.nodes:
        reached.add(node.proto, node.inputs)
    return reached


class Reached:
    """The masks of the tensors of one graph."""

    def __init__(self, functions: _Functions, sources: Mapping[str, int]) -> None:
        self._functions = functions
        # Of most nodes, all outputs have one mask.
        self._of_nodes = dict(sources)
        self._of_outputs: dict[Ref, int] = {}

    def of(self, ref: Ref) -> int:
        """The mask of a tensor."""
        return self._of_nodes.get(ref.node, 0) | self._of_outputs.get(ref, 0)

    def add(self, proto: Any, inputs: Sequence[Ref]) -> bool:
        """Finds the masks of a node's outputs; says whether any has grown."""
        found = self._functions.outputs(proto, [self.of(ref) for ref in inputs])
        if isinstance(found, int):
            has_grown = found != self._of_nodes.get(proto.name, 0)
            if has_grown:
                self._of_nodes[proto.name] = found
            return has_grown
        has_grown = False
        for port, mask in found.items():
            ref = Ref(node=proto.name, port=port)
            has_grown |= mask != self._of_outputs.get(ref, 0)
            self._of_outputs[ref] = mask
        return has_grown


class _Functions:
    """What reaches the results of the functions of one library."""

    def __init__(self, library: Iterable[Any]) -> None:
        self._functions = {f.signature.name: f for f in library}
        self._found: dict[str, list[int]] = {}
        self._is_stateful: dict[str, bool] = {}

    def outputs(self, proto: Any, masks: list[int]) -> int | dict[str, int]:
        """The mask of all outputs of a node, or one by port."""
        op = proto.op
        if op in _NEVER_OF_NUMBERS or OF_NO_EXAMPLE in proto.name:
            return 0
        if op == "IdentityN":
            return _by_port(masks)
        if op in _CALLS or op in _LOOPS or op in _BRANCHES or op in self._functions:
            return self._call(proto, masks)
        if "FusedBatchNorm" in op and "Grad" not in op and _is_training(proto):
            return _batch_norm(masks)
        mask = VARIES if self._varies(op) else 0
        for one in masks:
            mask |= one
        return mask

    def _varies(self, op: str) -> bool:
        """Whether equal inputs do not mean equal outputs."""
        if op not in self._is_stateful:
            definition = _tf_compat.op_def(op)
            self._is_stateful[op] = op not in READ_OPS and (
                definition is None or definition.is_stateful
            )
        return self._is_stateful[op]

    def _call(self, proto: Any, masks: list[int]) -> int | dict[str, int]:
        if proto.op in _LOOPS:
            return _by_port(self._loop(proto, masks))
        if proto.op in _BRANCHES:
            branches = [self._of_function(name, masks[1:]) for name in _called(proto)]
            return _by_port(
                [masks[0] | _union(way) for way in zip(*branches, strict=True)]
            )
        if proto.op in _CALLS:
            return _by_port(self._of_function(proto.attr["f"].func.name, masks))
        results = self._functions[proto.op].signature.output_arg
        found = self._of_function(proto.op, masks)
        return {f"{arg.name}:0": m for arg, m in zip(results, found, strict=True)}

    def _loop(self, proto: Any, masks: list[int]) -> list[int]:
        body, condition = proto.attr["body"].func.name, proto.attr["cond"].func.name
        carried = self._summary(body)
        while True:
            (ends,) = self._of_function(condition, masks)
            new = [
                # What passes unchanged is the same after any number of turns.
                mask if way == _bit(index) else mask | ends | after
                for index, (mask, way, after) in enumerate(
                    zip(masks, carried, self._of_function(body, masks), strict=True)
                )
            ]
            if new == masks:
                return masks
            masks = new

    def _of_function(self, name: str, masks: Sequence[int]) -> list[int]:
        """The masks of a function's results, of those of its arguments."""
        return [
            (way & VARIES) | _union(m for i, m in enumerate(masks) if way & _bit(i))
            for way in self._summary(name)
        ]

    def _summary(self, name: str) -> list[int]:
        """By result, which arguments reach it."""
        if name not in self._found:
            function = self._functions[name]
            arguments = function.signature.input_arg
            everything = VARIES | _union(_bit(i) for i in range(len(arguments)))
            # A recursive function is looked at once; assume the worst meanwhile.
            self._found[name] = [everything] * len(function.signature.output_arg)
            self._found[name] = self._analyze(function)
        return self._found[name]

    def _analyze(self, function: Any) -> list[int]:
        arguments = function.signature.input_arg
        reached = Reached(self, {arg.name: _bit(i) for i, arg in enumerate(arguments)})
        nodes = [
            (proto, [_ref(text) for text in proto.input if not text.startswith("^")])
            for proto in function.node_def
        ]
        # The nodes of a function are in no particular order.
        has_grown = True
        while has_grown:
            has_grown = False
            for proto, inputs in nodes:
                has_grown |= reached.add(proto, inputs)
        results = (function.ret[arg.name] for arg in function.signature.output_arg)
        return [reached.of(_ref(text)) for text in results]


def _bit(argument: int) -> int:
    return VARIES << (argument + 1)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _by_port(masks: Iterable[int]) -> dict[str, int]:
    return {f"output:{index}": mask for index, mask in enumerate(masks)}


def _ref(text: str) -> Ref:
    node, _, port = text.partition(":")
    return Ref(node=node, port=port)


def _called(proto: Any) -> list[str]:
    if "branches" in proto.attr:
        return [function.name for function in proto.attr["branches"].list.func]
    return [proto.attr[name].func.name for name in ("then_branch", "else_branch")]


def _is_training(proto: Any) -> bool:
    return proto.attr["is_training"].b if "is_training" in proto.attr else True


def _batch_norm(masks: Sequence[int]) -> dict[str, int]:
    """What trains is normalized by its batch, and updates the averages it is given."""
    definition = _tf_compat.op_def("FusedBatchNormV3")
    of_batch = _union(itertools.chain(masks[:3], masks[5:]))
    return {
        port: of_batch | (_union(masks[3:5]) if port in _RUNNING else 0)
        for port in (f"{arg.name}:0" for arg in definition.output_arg)
    }
