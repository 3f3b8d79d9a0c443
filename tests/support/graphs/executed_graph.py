"""The graph that TensorFlow executes: after inlining, placing and partitioning.

What a step costs on many devices is seen there only: an edge of the linked graph may be
many transfers, or none.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.eager import context as eager_context

_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
# What runs on the host, or passes on what is there.
_WITHOUT_LAUNCH = frozenset(
    {
        *_SENDS,
        *_RECEIVES,
        "_Arg",
        "_DeviceArg",
        "_DeviceRetval",
        "_HostRetval",
        "_Retval",
        "Assert",
        "AssignVariableOp",  # takes the tensor as it is
        "Const",
        "Identity",
        "IdentityN",
        "IteratorGetNext",
        "NoOp",
        "PreventGradient",
        "ReadVariableOp",
        "Reshape",
        "Shape",
        "ShapeN",
        "Size",
        "Squeeze",
        "StopGradient",
        "VarHandleOp",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """The largest function that was started."""

    num_nodes: int  # Of all partitions.
    # Transfers of nothing, for which something on another device waits.
    num_controls: int
    num_data: int  # Transfers of values between devices.


def partitions(first_call):
    """Returns the graph of each device of the largest function that a call starts."""
    context = eager_context.context()
    context.enable_graph_collection()
    try:
        first_call()
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    return max(
        (graph.partition_graphs for graph in graphs),
        key=lambda found: sum(len(part.node) for part in found),
    )


def before(graph):
    """Returns a function from a node of a graph to all nodes that end before it."""
    inputs = {
        node.name: [text.removeprefix("^").partition(":")[0] for text in node.input]
        for node in graph.node
    }

    def ancestors(name):
        stack, found = list(inputs[name]), set[str]()
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack += inputs.get(one, [])
        return found

    return ancestors


def together(graphs):
    """Joins the graphs of all devices: what receives has what is sent as its input."""
    joined = type(graphs[0])()
    for graph in graphs:
        joined.node.extend(graph.node)
    sent = {_rendezvous(node): node.name for node in joined.node if node.op in _SENDS}
    for node in joined.node:
        if node.op in _RECEIVES:
            node.input.append(sent[_rendezvous(node)])
    return joined


def _rendezvous(node):
    names = ("tensor_name", "send_device", "recv_device")
    return tuple(node.attr[name].s for name in names)


def executed(first_call, *, between_processes=False):
    """Returns what a call executes; no call of the same function may be before it."""
    return count(partitions(first_call), between_processes=between_processes)


def count(graphs, *, between_processes=False):
    """Counts what ``executed`` does in the graphs of all devices."""
    sources = [
        nodes[send.input[0].partition(":")[0]]
        for part in graphs
        for nodes in [{node.name: node for node in part.node}]
        for send in part.node
        if send.op in _SENDS and (_leaves_process(send) or not between_processes)
    ]
    num_controls = sum(map(_is_dummy, sources))
    return Executed(
        num_nodes=sum(len(part.node) for part in graphs),
        num_controls=num_controls,
        num_data=len(sources) - num_controls,
    )


def launches(graph):
    """Counts the nodes of a device that would start a kernel on a GPU."""
    return sum(node.op not in _WITHOUT_LAUNCH for node in graph.node)


def _leaves_process(send):
    """Whether what is sent goes to a device of another process."""
    source, target = (send.attr[f"{end}_device"].s for end in ("send", "recv"))
    return bool(source.rpartition(b"/")[0] != target.rpartition(b"/")[0])


def _is_dummy(node):
    """Whether a node is the empty constant that TensorFlow sends for a control edge."""
    if node.op != "Const" or not node.input:
        return False
    return [0] == [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
