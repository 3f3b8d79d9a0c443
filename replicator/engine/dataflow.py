"""Dataflow of a traced graph: effects, reach of sources, what replicas share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.keras_parts import OF_NO_EXAMPLE
from replicator.engine.body import (
    BRANCHES,
    CONTROL_FLOW,
    LOOPS,
    called_names,
    nodes_of,
    producer,
    ref_of,
)
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from replicator.engine.body import Body, Node, Ref


READ_OPS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
    }
)
# They wait, and have no effect on values: one lock is enough for all replicas.
_WAIT_OPS = frozenset({"ConsumeMutexLock", "MutexLock"})
_WRITE_PREFIXES = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CALL_OPS = CONTROL_FLOW | _CALLS
PASS_THROUGH = frozenset({"Identity", "IdentityN"})
_RESOURCE = tf.resource.as_datatype_enum


def takes_inputs(proto: Any, functions: Collection[str]) -> bool:
    """Whether the functions that a node calls take its own inputs."""
    return proto.op in _CALL_OPS or proto.op in functions


def first_argument(proto: Any) -> int:
    """Which input of such a node is the first argument: 0 may choose the branch."""
    return int(proto.op in BRANCHES)


class Effects(NamedTuple):
    """What one operation, with the functions it calls, may do."""

    # Same inputs give same outputs, and nothing else happens, but for reads and writes
    # of variables.
    is_pure: bool
    writes: frozenset[int]  # Positions of data inputs whose variable may be written.


class EffectTable:
    """What operations may do, with the functions of one library, each analysed once."""

    def __init__(self, library: Iterable[Any]) -> None:
        self._functions = {function.signature.name: function for function in library}
        self._known: dict[str, Effects] = {}

    def of(self, node: Node) -> Effects:
        op, names = node.op, called_names(node.proto) if self._functions else ()
        inner = [
            self._analyze_function(name) for name in names if name in self._functions
        ]
        is_pure = all(effects.is_pure for effects in inner)
        if inner and takes_inputs(node.proto, self._functions):
            first = first_argument(node.proto)
            written = {index + first for effects in inner for index in effects.writes}
            return Effects(is_pure, frozenset(written))
        # Datasets and the like: inputs are not those of the functions they call.
        is_write = op.startswith(_WRITE_PREFIXES)
        is_harmless = not is_write and is_pure and not _is_stateful(op)
        if is_harmless or op in READ_OPS or op in PASS_THROUGH or op in _WAIT_OPS:
            return Effects(is_pure=True, writes=frozenset())
        # Slots of fused updates are handles too: which of the inputs are handles is
        # known to the caller, so every position counts as written.
        return Effects(is_write, frozenset(range(len(node.inputs))))

    def _analyze_function(self, name: str) -> Effects:
        if name in self._known:
            return self._known[name]
        function = self._functions[name]
        arguments = list(enumerate(function.signature.input_arg))
        # What a recursive function finds of itself.
        self._known[name] = Effects(False, frozenset(index for index, _ in arguments))
        nodes = {node.name: node for node in nodes_of(function)}
        by_node = [(node, self.of(node)) for node in nodes.values()]
        written = {
            origin(node.inputs[position], nodes)
            for node, effects in by_node
            for position in effects.writes
        }
        self._known[name] = Effects(
            is_pure=all(effects.is_pure for _, effects in by_node),
            writes=frozenset(
                index
                for index, arg in arguments
                if arg.type == _RESOURCE and arg.name in written
            ),
        )
        return self._known[name]

    def written_variables(
        self, body: Body, handles: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        """By node, the handles of the variables that it may write."""
        nodes = {node.name: node for node in body.nodes}
        known, targets_of = frozenset(handles), {}
        for node in body.nodes:
            origins = [origin(ref, nodes) for ref in node.inputs]
            if known.isdisjoint(origins) or node.op in READ_OPS:
                continue
            written = [origins[position] for position in sorted(self.of(node).writes)]
            if targets := tuple(dict.fromkeys(h for h in written if h in known)):
                targets_of[node.name] = targets
        return targets_of


def _is_stateful(op: str) -> bool:
    """Whether equal inputs do not mean equal outputs; also of what is not known."""
    definition = _tf_compat.op_def(op)
    return bool(definition is None or definition.is_stateful)


def origin(ref: Ref, nodes: Mapping[str, Node]) -> str:
    """The input or node that a tensor is from, looking through identities."""
    while (node := nodes.get(ref.node)) is not None and node.op in PASS_THROUGH:
        ref = node.inputs[int(ref.port.rpartition(":")[2])]
    return ref.node


# Sources are inputs of a graph, each a bit of a mask; the mask of a tensor says which
# of them its value depends on. Branches and loops are functions that a node calls, and
# are followed output by output: the output of a layer that normalizes by its batch does
# not depend on the moving averages that the same branch updates. What a variable holds
# reaches what reads it. Values that never depend on the numbers of their input, such as
# its shape, end the flow.

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
# Outputs of batch norm that the given mean and variance reach, while it trains.
_RUNNING = frozenset({"batch_mean:0", "batch_variance:0"})


@dataclasses.dataclass(frozen=True, slots=True)
class Masks:
    """The masks of the tensors of one graph, from ``walk``."""

    # Of most nodes, all outputs have one mask; of others, there is one by port.
    found: dict[str, int | dict[str, int]]

    def of(self, ref: Ref) -> int:
        mask = self.found.get(ref.node, 0)
        return mask if isinstance(mask, int) else mask.get(ref.port, 0)

    def node_mask(self, name: str) -> int:
        mask = self.found.get(name, 0)
        return mask if isinstance(mask, int) else _union(mask.values())


Transfer = Callable[["Node", list[int]], "int | dict[str, int]"]
"""From the masks of what a node is given to the mask of its outputs, or one by port."""


def walk(
    nodes: Sequence[Node],
    sources: Mapping[str, int],
    transfer: Transfer,
    *,
    is_ordered: bool = True,
) -> Masks:
    """Finds the masks of all tensors, node by node; in any order, until none grows."""
    masks = Masks({**sources})
    has_grown = True
    while has_grown:
        has_grown = False
        for node in nodes:
            given = [masks.of(ref) for ref in node.inputs]
            # Gradients of collectives pass results and operands through one such node,
            # and only the former are the same on every replica.
            is_passing = node.op == "IdentityN"
            produced = _by_port(given) if is_passing else transfer(node, given)
            has_grown |= produced != masks.found.get(node.name, 0)
            masks.found[node.name] = produced
        has_grown &= not is_ordered
    return masks


class Functions:
    """What reaches the results of functions: by result, which arguments do."""

    def __init__(
        self, library: Iterable[Any], transfer: Transfer | None = None
    ) -> None:
        self._functions = {function.signature.name: function for function in library}
        self._transfer = transfer or self.outputs
        self._known: dict[str, list[int]] = {}

    def outputs(self, node: Node, masks: list[int]) -> int | dict[str, int]:
        """The mask of all outputs of a node, or one by port."""
        op = node.op
        if op in _NEVER_OF_NUMBERS or OF_NO_EXAMPLE in node.name:
            return 0
        if "FusedBatchNorm" in op and "Grad" not in op:
            attrs = node.proto.attr
            if "is_training" not in attrs or attrs["is_training"].b:
                return _batch_norm(masks)
        if (results := self.by_result(node, masks)) is not None:
            return results
        varies = op not in READ_OPS and _is_stateful(op)
        return _union(masks) | (VARIES if varies else 0)

    def by_result(self, node: Node, masks: list[int]) -> dict[str, int] | None:
        """The masks of what a call returns, by port; None of any other operation."""
        results = self._call(node.proto, masks)
        if results is None or node.op not in self._functions:
            return None if results is None else _by_port(results)
        ports = (arg.name for arg in self._functions[node.op].signature.output_arg)
        return {f"{name}:0": m for name, m in zip(ports, results, strict=True)}

    def _call(self, proto: Any, masks: list[int]) -> list[int] | None:
        """The masks of what functions return that a node calls; None if it does not."""
        if proto.op in LOOPS:
            return self._loop(proto, masks)
        if proto.op in BRANCHES:
            branches = [self._results(name, masks[1:]) for name in _branches(proto)]
            return [masks[0] | _union(way) for way in zip(*branches, strict=True)]
        name = proto.attr["f"].func.name if proto.op in _CALLS else proto.op
        return self._results(name, masks) if name in self._functions else None

    def _loop(self, proto: Any, masks: list[int]) -> list[int]:
        body, condition = proto.attr["body"].func.name, proto.attr["cond"].func.name
        carried = self._analyze_function(body)
        while True:
            (ends,) = self._results(condition, masks)
            new = [
                # What passes unchanged is the same after any number of turns.
                mask if way == _bit(index) else mask | ends | after
                for index, (mask, way, after) in enumerate(
                    zip(masks, carried, self._results(body, masks), strict=True)
                )
            ]
            if new == masks:
                return masks
            masks = new

    def _results(self, name: str, masks: Sequence[int]) -> list[int]:
        return [
            (way & VARIES) | _union(m for i, m in enumerate(masks) if way & _bit(i))
            for way in self._analyze_function(name)
        ]

    def _analyze_function(self, name: str) -> list[int]:
        if name not in self._known:
            function = self._functions[name]
            signature, nodes = function.signature, nodes_of(function)
            sources = {arg.name: _bit(i) for i, arg in enumerate(signature.input_arg)}
            # What a recursive function finds of itself.
            worst = VARIES | _union(sources.values())
            self._known[name] = [worst] * len(signature.output_arg)
            masks = walk(nodes, sources, self._transfer, is_ordered=False)
            results = (function.ret[result.name] for result in signature.output_arg)
            self._known[name] = [masks.of(ref_of(result)) for result in results]
        return self._known[name]


def _bit(argument: int) -> int:
    return VARIES << (argument + 1)


def _union(masks: Iterable[int]) -> int:
    bits = 0
    for mask in masks:
        bits |= mask
    return bits


def _by_port(masks: Iterable[int]) -> dict[str, int]:
    return {f"output:{index}": mask for index, mask in enumerate(masks)}


def _branches(proto: Any) -> list[str]:
    if "branches" in proto.attr:
        return [function.name for function in proto.attr["branches"].list.func]
    return [proto.attr[name].func.name for name in ("then_branch", "else_branch")]


def _batch_norm(masks: Sequence[int]) -> dict[str, int]:
    """What trains is normalized by its batch, and updates the averages it is given."""
    definition = _tf_compat.op_def("FusedBatchNormV3")
    of_batch = _union(itertools.chain(masks[:3], masks[5:]))
    return {
        port: of_batch | (_union(masks[3:5]) if port in _RUNNING else 0)
        for port in (f"{arg.name}:0" for arg in definition.output_arg)
    }


# A mirrored variable stays mirrored if and only if every value written to it is the
# same on every replica. That is a property of the graph: batches, random numbers and
# the replica id vary; results of reductions do not; a node whose inputs are all
# invariant is invariant. So the engine proves which variables are mirrored instead of
# relying on a flag, detects replica-local ones (batch-norm statistics), and knows which
# work has to be done only once if replicas share memory.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Invariance:
    # Names of nodes whose outputs and effects are identical on every replica.
    nodes: frozenset[str]
    local: frozenset[str]  # Handle placeholders of replica-local variables.
    # For each of them, the node that writes a varying value.
    local_because: dict[str, str]


_WRITTEN = "written"  # In place of a port.


def find_invariance(
    body: Body,
    captures: Mapping[str, Any],
    variables: Mapping[str, Any],
    table: Any,
    same: Collection[str],
) -> Invariance:
    """Finds the least set of replica-local variables and all invariant nodes."""
    # Replicas have the same in ``same``, and in what the step captures.
    tensors = {name for name, x in captures.items() if x.dtype != tf.resource}
    kinds = {name: table.kind(variable) for name, variable in variables.items()}
    bits = {handle: _bit(index) for index, handle in enumerate(kinds)}
    varying = body.placeholders.difference(tensors, same)
    effects = EffectTable(body.library)

    def transfer(node: Node, masks: list[int]) -> int | dict[str, int]:
        # An effect is never invariant, even of the same values: printing, drawing and
        # reading a file happen once per replica. Writes are excepted by ``is_pure``:
        # one for all replicas is what sharing a variable means.
        found = effects.of(node)
        if not found.is_pure:
            return VARIES
        # Some results of a function, of a branch or of a loop may be invariant.
        results = functions.by_result(node, masks) if functions else None
        if results is None:
            return _union(masks)
        # What a call writes may be of all that it is given.
        return results | {_WRITTEN: _union(masks)} if found.writes else results

    functions = Functions(body.library, transfer) if body.library else None
    masks = walk(body.nodes, dict.fromkeys(varying, VARIES) | bits, transfer)
    writes = effects.written_variables(body, kinds)
    reasons = {name: "" for name, kind in kinds.items() if kind is not Kind.MIRRORED}
    # The least fixed point from below: all variables count as mirrored until a write
    # that varies is found, which may make other writes vary. Starting from above (all
    # local) would never find one mirrored that is updated from itself.
    while True:
        differs = VARIES | _union(bits[handle] for handle in reasons)
        count = len(reasons)
        for name, written in writes.items():
            if masks.node_mask(name) & differs:
                for handle in written:
                    reasons.setdefault(handle, name)
        if len(reasons) == count:
            break
    alike = (n.name for n in body.nodes if not masks.node_mask(n.name) & differs)
    return Invariance(
        nodes=frozenset(alike),
        local=frozenset(reasons),
        local_because={handle: name for handle, name in reasons.items() if name},
    )


_PASSED_ON = frozenset({"Identity", "StopGradient"})


class Origins:
    """Where tensors of a graph are from: several may be one value in memory."""

    def __init__(self, graph_def: Any) -> None:
        # By function, its arguments and the place of each result in it: an argument,
        # the result of a node, or nothing for the value of a variable.
        library = graph_def.library.function
        self._places = {f.signature.name: _places(f) for f in library}

    def of(self, tensor: Any) -> tuple[str, str, int | None] | None:
        """An operation, the place of its result, and its bytes."""
        # None for the value of a variable; bytes are None without a static shape.
        operation, port = tensor.op, str(tensor.value_index)
        if operation.type in _PASSED_ON:
            return self.of(operation.inputs[0])
        if operation.type == "ReadVariableOp" or tensor.dtype == tf.resource:
            return None
        called = operation.get_attr("f").name if operation.type in _CALLS else None
        if called in self._places:
            arguments, places = self._places[called]
            port = places[tensor.value_index]
            if port in arguments:
                return self.of(operation.inputs[arguments.index(port)])
            if not port:
                return None
        count = tensor.shape.num_elements()
        if count is None or tensor.dtype == tf.variant:
            return operation.name, port, None
        return operation.name, port, count * tensor.dtype.size


def _places(function: Any) -> tuple[list[str], list[str]]:
    nodes = {node.name: node for node in function.node_def}

    def place(text: str) -> str:
        while (node := nodes.get(producer(text))) is not None:
            if node.op == "ReadVariableOp":
                return ""
            if node.op not in _PASSED_ON:
                break
            text = node.input[0]
        return text

    signature = function.signature
    results = [place(function.ret[result.name]) for result in signature.output_arg]
    return [argument.name for argument in signature.input_arg], results
