"""Nodes say on which type of device they will run, while they are optimized."""

import itertools

import pytest

from replicator._tf import compat as _tf_compat
from replicator.core import context
from replicator.core.topology import make_topology
from replicator.engine.graph.optimize import Stamps

LOCAL = "/job:localhost/replica:0/task:0/device:"
REMOTE = "/job:worker/replica:0/task:{}/device:GPU:{}"
SERVER = "/job:ps/task:1/device:CPU:0"
PARTS = [context.logical_name(0), context.logical_name(1)]


def _graph(devices, functions=None):
    """A graph with one node per device; ``f@device`` calls function ``f`` there."""
    graph_def = _tf_compat.GraphDef()
    for name, inner in (functions or {}).items():
        function = graph_def.library.function.add()
        function.signature.name = name
        _add_nodes(function.node_def, inner)
    _add_nodes(graph_def.node, devices)
    return graph_def


def _add_nodes(nodes, texts):
    for index, text in enumerate(texts):
        called, found, device = text.rpartition("@")
        node = nodes.add(name=f"node_{index}", op="NoOp", device=device)
        if found:
            node.attr["f"].func.name = called


def _kinds(graph_def):
    nodes = itertools.chain(
        graph_def.node, *(f.node_def for f in graph_def.library.function)
    )
    return [node.device.rpartition(":")[0].rpartition(":")[2] for node in nodes]


def _topology(*devices):
    return make_topology([[d] if isinstance(d, str) else d for d in devices])


GPUS = _topology(f"{LOCAL}GPU:0", f"{LOCAL}GPU:1")
CPUS = _topology(f"{LOCAL}CPU:0", f"{LOCAL}CPU:0")
OF_TWO_TYPES = _topology(f"{LOCAL}GPU:0", f"{LOCAL}CPU:0")
WORKERS = _topology(REMOTE.format(0, 0), REMOTE.format(1, 0), REMOTE.format(1, 1))
IN_PARTS = _topology([f"{LOCAL}GPU:0"] * 2)
NESTED = {"f": ["", "/device:CPU:0", "g@"], "g": [""]}


@pytest.mark.parametrize(
    ("devices", "functions", "topology", "kinds"),
    [
        (["", "f@"], NESTED, GPUS, "GPU GPU GPU CPU GPU GPU"),
        (["", "f@"], NESTED, CPUS, "CPU CPU CPU CPU CPU CPU"),
        (["", "f@"], NESTED, WORKERS, "GPU GPU GPU CPU GPU GPU"),
        # Also parameter servers, whose job is another.
        (["", "/device:CPU:0", SERVER], {}, GPUS, "GPU CPU CPU"),
        # The optimizer merges equal nodes of one device, and of no two.
        ([*PARTS, ""], {}, IN_PARTS, "GPU GPU GPU"),
        # The search for callers ends.
        (["f@"], {"f": ["f@"]}, GPUS, "GPU GPU"),
        # What runs on two types gets no stamp, so no rule for one type may run: it
        # would pull both calls to one device, and one graph is optimized for all.
        (["f@", "f@/device:CPU:0"], {"f": [""]}, GPUS, "GPU CPU -"),
        (["", "/device:CPU:0"], {}, OF_TWO_TYPES, "- CPU"),
    ],
    ids=[
        *("GPUs", "CPUs", "workers", "servers", "logical devices", "a call of itself"),
        *("a function of two devices", "replicas of two types"),
    ],
)
def test_every_node_gets_the_type_of_its_device_and_then_asks_as_before(
    devices, functions, topology, kinds
):
    """No replica index is left, which would pin all replicas to one device."""
    graph_def = _graph(devices, functions)
    before = graph_def.SerializeToString(deterministic=True)
    stamps = Stamps(graph_def, topology)
    stamps.add(graph_def)

    assert kinds.split() == [kind or "-" for kind in _kinds(graph_def)]
    assert ("-" not in kinds) == stamps.is_complete
    if not functions and stamps.is_complete:
        assert len(devices) == len({node.device for node in graph_def.node})
    stamps.remove(graph_def)
    assert before == graph_def.SerializeToString(deterministic=True)


def test_what_the_optimizer_moves_asks_for_where_it_is():
    """To the host, its first CPU; out of a function, to the device of its caller."""
    part = PARTS[1]
    graph_def = _graph([f"f@{part}"], {"f": ["g@", "/device:CPU:0"], "g": [""]})
    stamps = Stamps(graph_def, _topology([f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"]))
    stamps.add(graph_def)
    graph_def.node.add(name="moved", device=f"{LOCAL}CPU:0")
    for function in graph_def.library.function:
        for node in function.node_def:
            graph_def.node.add(name=f"inlined_{len(graph_def.node)}").CopyFrom(node)

    stamps.remove(graph_def)

    assert [part, "/device:CPU:0", part, "/device:CPU:0", part] == [
        node.device for node in graph_def.node
    ]
