"""Dataflow of a traced graph: effects, reach of sources, what replicas share."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.keras_parts import OF_NO_EXAMPLE
from replicator.core.step import at_lines
from replicator.engine.graph.body import Ref, producer
from replicator.engine.graph.stamps import called_functions
from replicator.errors import UnsynchronisedUpdateError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node


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
_CALL_OPS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    }
)
_BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
PASS_THROUGH = frozenset({"Identity", "IdentityN"})
_ARG_TYPES = (tf.resource.as_datatype_enum,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """What one operation, with the functions it calls, may do."""

    # Same inputs give same outputs, and nothing else happens, but for reads and writes
    # of variables.
    is_pure: bool
    writes: frozenset[int]  # Positions of data inputs whose variable may be written.
    # To one replica: draws from a stateful random stream, or calls Python, which keeps
    # what the gradient of the call needs.
    is_bound: bool


def called_by(proto: Any, functions: Collection[str]) -> list[str]:
    """Names of those functions that a node calls."""
    if not functions:
        return []
    names = [proto.op, *(called.name for called in called_functions(proto))]
    return [name for name in names if name in functions]


def takes_inputs(proto: Any, functions: Collection[str]) -> bool:
    """Whether the functions that a node calls take its own inputs."""
    return proto.op in _CALL_OPS or proto.op in functions


def first_argument(proto: Any) -> int:
    """Which input of such a node is the first argument: 0 may choose the branch."""
    return int(proto.op in _BRANCHES)


class EffectTable:
    """Effects of nodes, looking through the functions of one library."""

    def __init__(self, library: Iterable[Any]) -> None:
        self._functions: Mapping[str, Any] = {f.signature.name: f for f in library}
        self._of_functions: dict[str, Effects] = {}

    def of(self, proto: Any, num_data_inputs: int) -> Effects:
        """Returns the effects of a node."""
        called = called_by(proto, self._functions)
        if called and takes_inputs(proto, self._functions):
            return self._of_call(proto, called)
        definition = _tf_compat.op_def(proto.op)
        is_stateful = bool(definition and definition.is_stateful)
        is_bound = is_stateful and not {"seed", "token"}.isdisjoint(proto.attr)
        # Datasets and the like: inputs are not those of the functions they call.
        is_bound |= any(self.is_bound(name) for name in called)
        if proto.op in READ_OPS or proto.op in PASS_THROUGH or proto.op in _WAIT_OPS:
            return Effects(is_pure=True, writes=frozenset(), is_bound=False)
        if proto.op.startswith(_WRITE_PREFIXES):
            # Slots of fused updates are handles too: which of the inputs are handles
            # is known to the caller, so every position counts as written.
            everything = frozenset(range(num_data_inputs))
            return Effects(is_pure=True, writes=everything, is_bound=False)
        is_pure = definition is not None and not is_stateful
        is_pure &= all(self._of_function(name).is_pure for name in called)
        writes = frozenset() if is_pure else frozenset(range(num_data_inputs))
        return Effects(is_pure=is_pure, writes=writes, is_bound=is_bound)

    def is_bound(self, name: str) -> bool:
        """Whether a function is bound to one replica; see ``Effects``."""
        return self._of_function(name).is_bound

    def _of_call(self, proto: Any, called: list[str]) -> Effects:
        effects = [self._of_function(name) for name in called]
        written: set[int] = set().union(*(e.writes for e in effects))
        first = first_argument(proto)
        return Effects(
            is_pure=all(e.is_pure for e in effects),
            writes=frozenset(index + first for index in written),
            is_bound=any(e.is_bound for e in effects),
        )

    def _of_function(self, name: str) -> Effects:
        if name not in self._of_functions:
            # A recursive function is looked at once; assume the worst meanwhile.
            function = self._functions[name]
            everything = frozenset(range(len(function.signature.input_arg)))
            self._of_functions[name] = Effects(
                is_pure=False, writes=everything, is_bound=True
            )
            self._of_functions[name] = self._analyze(function)
        return self._of_functions[name]

    def _analyze(self, function: Any) -> Effects:
        handles = {
            arg.name: index
            for index, arg in enumerate(function.signature.input_arg)
            if arg.type in _ARG_TYPES
        }
        is_pure, is_bound, writes = True, False, set()
        for proto in function.node_def:
            data = [text for text in proto.input if not text.startswith("^")]
            effects = self.of(proto, len(data))
            is_pure &= effects.is_pure
            is_bound |= effects.is_bound
            for position, text in enumerate(data):
                origin = producer(text)
                if origin not in handles:
                    continue
                if proto.op in PASS_THROUGH:
                    handles[proto.name] = handles[origin]
                elif position in effects.writes:
                    writes.add(handles[origin])
        return Effects(is_pure=is_pure, writes=frozenset(writes), is_bound=is_bound)


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
_LOOPS = frozenset({"StatelessWhile", "While"})
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


# A mirrored variable stays mirrored if and only if every value written to it is the
# same on every replica. That is a property of the graph: batches, random numbers and
# the replica id vary; results of reductions do not; a node whose inputs are all
# invariant is invariant. So the engine proves which variables are mirrored instead of
# relying on a flag, detects replica-local ones (batch-norm statistics), and knows which
# work has to be done only once if replicas share memory.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Invariance:
    """The result of the analysis."""

    # Names of nodes whose outputs and effects are identical on every replica.
    nodes: frozenset[str]
    local: frozenset[str]  # Handle placeholders of replica-local variables.
    # For each of them, the node that writes a varying value.
    local_because: dict[str, str]


def find_invariance(
    body: Body,
    *,
    invariant_inputs: Collection[str],
    handles: Collection[str],
    local: Collection[str],
) -> Invariance:
    """Finds the least set of replica-local variables and all invariant nodes."""
    effects = EffectTable(body.library)
    found = dict.fromkeys(local, "")
    # The least fixed point from below: all variables count as mirrored until a write
    # that varies is found, which may make other writes vary. Starting from above (all
    # local) would never find one mirrored that is updated from itself.
    while True:
        nodes, varying_writes = _pass(
            body, set(invariant_inputs), set(handles), set(found), effects
        )
        new = {h: n for h, n in varying_writes.items() if h not in found}
        if not new:
            return Invariance(
                nodes=frozenset(nodes),
                local=frozenset(found),
                local_because={h: n for h, n in found.items() if n},
            )
        found.update(new)


def check_trainable(
    invariance: Invariance,
    variables: Mapping[str, Any],
    lines: Mapping[str, Sequence[str]],
) -> None:
    """Rejects steps that would make trainable variables diverge between replicas."""
    drifting = [h for h in invariance.local_because if variables[h].trainable]
    if drifting:
        name = variables[drifting[0]].name
        more = f" and {len(drifting) - 1} more" if len(drifting) > 1 else ""
        raise UnsynchronisedUpdateError(
            f"trainable variable {name!r}{more} would be updated with a value that "
            f"differs between replicas{at_lines(lines[drifting[0]])}, so the copies "
            "would diverge; wrap the optimizer with repl.wrap_optimizer(), or "
            "all_reduce the gradients; if it is state by which replicas train (a "
            "probability, a codebook), average the value that you assign, as in "
            "v.assign(replicator.all_mean(value)); if it is not a weight (a metric, a "
            "counter, a statistic), create it with trainable=False (tf.Variable is "
            "trainable by default): then each replica keeps its own copy; if replicas "
            "shall train separate copies, create it with "
            "synchronization=tf.VariableSynchronization.ON_READ"
        )


def check_required(invariance: Invariance, required: Mapping[str, str]) -> None:
    """Rejects steps in which something varies that must not."""
    for name, error in required.items():
        if name not in invariance.nodes:
            raise UnsynchronisedUpdateError(error)


def _pass(
    body: Body,
    invariant_inputs: set[str],
    handles: set[str],
    local: set[str],
    effects: EffectTable,
) -> tuple[set[str], dict[str, str]]:
    mirrored = handles - local
    known = _Known(invariant_inputs | mirrored, handles)
    varying_writes: dict[str, str] = {}
    invariant: set[str] = set()
    for node in body.nodes:
        known.look_through(node)
        of_node = effects.of(node.proto, len(node.inputs))
        # An effect is never invariant, even of the same values: printing, drawing and
        # reading a file happen once per replica. Writes are excepted by ``is_pure``:
        # one for all replicas is what sharing a variable means.
        if of_node.is_pure and all(map(known.is_same, node.inputs)):
            known.same.add(node.name)
            invariant.add(node.name)
            continue
        for position in of_node.writes:
            if position < len(node.inputs) and node.op not in READ_OPS:
                origin = known.origin(node.inputs[position])
                if origin in mirrored:
                    varying_writes.setdefault(str(origin), node.name)
    return invariant, varying_writes


class _Known:
    """What one pass knows of the tensors that it has seen.

    Attributes:
      same: Nodes and placeholders all of whose outputs are identical on every replica.
    """

    def __init__(self, same: set[str], handles: set[str]) -> None:
        self.same = same
        self._handles = handles
        self._same_outputs: set[Ref] = set()
        self._alias: dict[Ref, str] = {}

    def is_same(self, ref: Ref) -> bool:
        """Whether a tensor is identical on every replica."""
        return ref.node in self.same or ref in self._same_outputs

    def origin(self, ref: Ref) -> str | None:
        """The placeholder of the variable that a tensor is the handle of, if any."""
        return ref.node if ref.node in self._handles else self._alias.get(ref)

    def look_through(self, node: Node) -> None:
        """Propagates facts through identities: output i is input i.

        Gradients of collectives pass results and operands through one ``IdentityN``,
        and only the former are the same on every replica.
        """
        if node.op not in ("Identity", "IdentityN"):
            return
        for index, ref in enumerate(node.inputs):
            output = Ref(node=node.name, port=f"output:{index}")
            origin = self.origin(ref)
            if origin is not None:
                self._alias[output] = origin
            if self.is_same(ref):
                self._same_outputs.add(output)


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
