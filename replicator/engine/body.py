"""Body: a graph in the form of a function body.

Functions name a tensor ``node:output_arg:index`` where graphs say ``node:index``. In
this form nodes can be copied, renamed and put into a ``FunctionDef`` without building
Python graph objects, which is what makes linking fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ref:
    """A tensor (``port`` like ``output:0``) or, with an empty port, a control edge."""

    node: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.node}:{self.port}" if self.port else f"^{self.node}"


Tensor: TypeAlias = Ref | str  # a node's output, or a function argument


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One operation of the single-device graph."""

    name: str  # Unique in the body.
    op: str  # The operation's type.
    inputs: tuple[Ref, ...]  # Data inputs in order.
    controls: tuple[str, ...]  # Nodes that must run before.
    proto: Any  # The node as TensorFlow wrote it; attributes are read from here.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """A single-device graph, in topological order."""

    nodes: tuple[Node, ...]  # Operations; placeholders are not among them.
    placeholders: frozenset[str]  # Names of the inputs.
    library: tuple[Any, ...]  # Functions that the nodes call.
    # Graph tensor name (``node:0`` or ``node``) to ``Ref``, resolved on demand.
    names: TensorNames
    notes: tuple[str, ...] = ()  # Lines for ``explain()``.


def depths(body: Body, follows: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How far each node is from the inputs: the longest chain of nodes to it."""
    before = {node.name: [*before_of(node)] for node in body.nodes}
    # A cut graph has no way from operand to result, so depths would begin anew at every
    # collective, and the order of transfers would mix early with late.
    before.update((name, list(follows.get(name, ()))) for name in body.placeholders)
    depth: dict[str, int] = {}
    for name in postorder(before, before.__getitem__):
        depth[name] = 1 + max((depth[n] for n in before[name]), default=-1)
    return depth


class TensorNames:
    """Translates tensor names of graphs into those of functions."""

    def __init__(self, graph_def: Any) -> None:
        self._nodes = {node.name: node for node in graph_def.node}
        self._functions = {
            f.signature.name: f.signature for f in graph_def.library.function
        }
        # By node, its outputs, such as ``y:0`` and ``batch_mean:0``.
        self._ports: dict[str, list[str]] = {}

    def ref(self, name: str) -> Ref:
        """Translates ``node:1``, ``node`` or ``^node``."""
        if name.startswith("^"):
            return Ref(node=name[1:])
        node_name, _, position = name.partition(":")
        if node_name in self._ports:
            ports = self._ports[node_name]
            return Ref(node=node_name, port=ports[int(position or 0)])
        node = self._nodes[node_name]
        definition = self._functions.get(node.op) or _tf_compat.op_def(node.op)
        if definition is None:
            raise ValueError(f"op {node.op!r} of node {node.name!r} is not registered")
        ports = self._ports[node_name] = []
        for arg in definition.output_arg:
            count = 1
            if arg.number_attr:
                count = node.attr[arg.number_attr].i
            elif arg.type_list_attr:
                count = len(node.attr[arg.type_list_attr].list.type)
            ports += [f"{arg.name}:{index}" for index in range(count)]
        return Ref(node=node_name, port=ports[int(position or 0)])


def from_graph_def(graph_def: Any) -> Body:
    # The step is traced as a graph, because the optimizer takes graphs, and linked as a
    # function, because TensorFlow registers those without a Python object for each node
    # of each replica. The two forms name tensors differently: ``names``.
    names = TensorNames(graph_def)
    protos = {node.name: node for node in graph_def.node}

    # Variables, batches, the replica id and, cut there, results of collectives: all
    # that differs from replica to replica comes in here, and copies only rename.
    placeholders = frozenset(n.name for n in graph_def.node if n.op == "Placeholder")
    order = postorder(protos, lambda name: map(producer, protos[name].input))
    return Body(
        nodes=tuple(
            _node(protos[n], names.ref) for n in order if n not in placeholders
        ),
        placeholders=placeholders,
        library=tuple(graph_def.library.function),
        names=names,
    )


def nodes_of(function: Any) -> list[Node]:
    return [_node(proto, ref_of) for proto in function.node_def]


def ref_of(text: str) -> Ref:
    node, _, port = text.partition(":")
    return Ref(node=node, port=port)


def _node(proto: Any, ref: Callable[[str], Ref]) -> Node:
    return Node(
        name=proto.name,
        op=proto.op,
        inputs=tuple(ref(text) for text in proto.input if text[0] != "^"),
        controls=tuple(text[1:] for text in proto.input if text[0] == "^"),
        proto=proto,
    )


def called_functions(node: Any) -> list[Any]:
    called = []
    for attr in node.attr.values():
        kind = attr.WhichOneof("value")
        if kind == "func":
            called.append(attr.func)
        elif kind == "list":
            called += attr.list.func
    return called


def called_names(node: Any) -> list[str]:
    """What may be a function that a node calls: the op, and names in its attributes."""
    return [node.op, *(called.name for called in called_functions(node))]


def functions_with(
    library: Iterable[Any], is_sought: Callable[[Any], bool]
) -> frozenset[str]:
    """Functions that have a node that is sought, or call such a function."""
    names: frozenset[str] = frozenset()
    while True:
        more = {
            function.signature.name
            for function in library
            if any(
                is_sought(node) or (names and not names.isdisjoint(called_names(node)))
                for node in function.node_def
            )
        }
        if more == names:
            return names
        names = frozenset(more)


def uses_of(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """By node or placeholder, the nodes that take it or wait for it."""
    uses: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(before_of(node)):
            uses.setdefault(name, []).append(node)
    return uses


def before_of(node: Node) -> tuple[str, ...]:
    """The nodes and placeholders that a node takes or waits for."""
    return (*(ref.node for ref in node.inputs), *node.controls)


def node_lists(graph_def: Any) -> list[Any]:
    """The nodes of a graph, and those of each function of its library."""
    return [graph_def.node, *(f.node_def for f in graph_def.library.function)]


def producer(text: str) -> str:
    """The node of a graph's input text: ``a`` of ``a:1``, ``^a`` and ``a``."""
    return text.lstrip("^").partition(":")[0]


def make_node(
    name: str,
    op: str,
    inputs: Iterable[Ref | str],
    device: str,
    attrs: Mapping[str, Any] | None = None,
    controls: Sequence[str] = (),
) -> Any:
    node = _tf_compat.NodeDef(name=name, op=op, device=device)
    node.input.extend(str(ref) for ref in inputs)
    node.input.extend(f"^{control}" for control in controls)
    for key, value in (attrs or {}).items():
        attr = node.attr[key]
        if isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, bool):
            attr.b = value
        elif isinstance(value, int):
            attr.i = value
        elif isinstance(value, str):
            attr.s = value.encode()
        elif isinstance(value, np.ndarray):
            attr.tensor.CopyFrom(tf.make_tensor_proto(value))
        elif isinstance(value, list):
            attr.list.SetInParent()  # an empty list too
            attr.list.i.extend(value)
        else:
            raise TypeError(f"no attribute type for {type(value).__name__!r}")
    return node


def make_const(name: str, value: Any, device: str) -> Any:
    """Makes a constant ``NodeDef`` from a NumPy value; Python ints become int32."""
    array = np.asarray(value, np.int32) if isinstance(value, int) else np.asarray(value)
    attrs = {"dtype": tf.as_dtype(array.dtype), "value": array}
    return make_node(name, "Const", [], device, attrs)


def postorder(
    roots: Iterable[str], before: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    """Names, each after all that come before it; graphs of steps have no cycles."""
    is_done: dict[str, bool] = {}
    for root in roots:
        stack = [] if root in is_done else [(root, iter(before(root)))]
        while stack:
            name, pending = stack[-1]
            is_done[name] = False
            for dependency in pending:
                if dependency not in is_done:
                    stack.append((dependency, iter(before(dependency))))
                    break
                if not is_done[dependency]:
                    raise ValueError(f"the graph has a cycle through {dependency!r}")
            else:
                is_done[name] = True
                yield stack.pop()[0]


# TensorFlow's graph optimizer treats such a node as one operation that starts when all
# its inputs are available and finishes with all its outputs, so it drops a control edge
# that a data edge implies. At run time, the node becomes the nodes of its body: these
# start as soon as their own inputs are available, and an output can be available before
# all effects. So every such node gets a control edge along each of its data edges
# again. A node without effects does, too: a branch that returns an argument does not
# wait for the others, among which may be a read that a later write has to follow.

_CALL = "StatefulPartitionedCall"
BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
LOOPS = frozenset({"StatelessWhile", "While"})
CONTROL_FLOW = BRANCHES | LOOPS


def keep_effects_in_order(graph_def: Any) -> None:
    """Adds the control edges to a graph and the functions of its library, in place."""
    flattened = _stateful(graph_def) | CONTROL_FLOW | {_CALL}
    for nodes in node_lists(graph_def):
        names = {node.name for node in nodes}
        calls = {node.name for node in nodes if node.op in flattened}
        for node in nodes if calls else ():
            known = {text for text in node.input if text.startswith("^")}
            data = [text for text in node.input if text not in known]
            for source in dict.fromkeys(map(producer, data)):
                # Arguments of a function are there before it starts.
                is_edge = node.name in calls or source in calls
                if is_edge and source in names and f"^{source}" not in known:
                    node.input.append(f"^{source}")


def keep_waits_of_calls(graph_def: Any) -> None:
    """Lets calls wait through a node of their own, in place, before the optimizer."""
    # It drops a control edge from what an argument is computed from, and then puts the
    # function's nodes in place of the call: those that do not use this argument would
    # no longer wait. An assignment then overtakes a read whose value the call is given.
    called = _stateful(graph_def) | {_CALL}
    for nodes in node_lists(graph_def):
        for node in [node for node in nodes if node.op in called]:
            waits = [text for text in node.input if text.startswith("^")]
            if waits:
                name = f"{node.name}/replicator_wait"
                nodes.add(name=name, op="NoOp", device=node.device, input=waits)
                data = [text for text in node.input if text not in waits]
                node.input[:] = [*data, f"^{name}"]


def _stateful(graph_def: Any) -> set[str]:
    library = graph_def.library.function
    return {f.signature.name for f in library if f.signature.is_stateful}
