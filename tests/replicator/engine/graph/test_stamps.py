"""Nodes say on which type of device they will run, while they are optimized."""

import itertools

import pytest

from replicator._tf import compat as _tf_compat
from replicator.core import context
from replicator.core.topology import make_topology
from replicator.engine.graph import body as body_lib
from replicator.engine.graph import liveness
from replicator.engine.graph.stamps import Stamps

LOCAL = "/job:localhost/replica:0/task:0/device:"
REMOTE = "/job:worker/replica:0/task:{}/device:GPU:{}"


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


def _devices(graph_def):
    return [node.device for node in graph_def.node]


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


@pytest.mark.parametrize(
    ("topology", "kind"), [(GPUS, "GPU"), (CPUS, "CPU"), (WORKERS, "GPU")]
)
def test_every_node_gets_the_type_of_the_replicas(topology, kind):
    graph_def = _graph(["", "f@"], {"f": ["", "g@"], "g": [""]})
    stamps = Stamps(graph_def, topology)
    stamps.add(graph_def)

    assert [kind] * 5 == _kinds(graph_def)
    assert stamps.is_complete
    assert kind in stamps.kinds().values()


@pytest.mark.parametrize("topology", [GPUS, CPUS, WORKERS])
def test_nodes_ask_for_what_they_asked_before(topology):
    """No replica index is left, which would pin all replicas to one device."""
    devices = ["", "/device:CPU:0", "f@", "/job:ps/task:1/device:CPU:0", "f@"]
    graph_def = _graph(devices, {"f": ["", "/device:CPU:0", "g@"], "g": [""]})
    before = graph_def.SerializeToString(deterministic=True)
    stamps = Stamps(graph_def, topology)
    stamps.add(graph_def)
    assert before != graph_def.SerializeToString(deterministic=True)

    stamps.remove(graph_def)

    assert before == graph_def.SerializeToString(deterministic=True)


def test_what_a_step_places_on_the_host_is_stamped_as_host():
    """Also parameter servers, whose job is another."""
    graph_def = _graph(["", "/device:CPU:0", "/job:ps/task:1/device:CPU:0"])
    stamps = Stamps(graph_def, GPUS)
    stamps.add(graph_def)

    assert ["GPU", "CPU", "CPU"] == _kinds(graph_def)
    assert f"{LOCAL}CPU:0" == _devices(graph_def)[1]
    assert 3 == len(set(_devices(graph_def)))


def test_a_node_that_the_optimizer_moves_to_the_host_asks_for_the_host():
    """It names the first CPU, whether or not the step did."""
    graph_def = _graph([""])
    stamps = Stamps(graph_def, GPUS)
    stamps.add(graph_def)
    graph_def.node.add(name="moved", device=f"{LOCAL}CPU:0")

    stamps.remove(graph_def)

    assert ["", "/device:CPU:0"] == _devices(graph_def)


def test_logical_devices_stay_apart_even_on_one_gpu():
    """The optimizer merges equal nodes of one device, and of no two."""
    parts = [context.logical_name(0), context.logical_name(1), ""]
    graph_def = _graph(parts)
    stamps = Stamps(graph_def, _topology([f"{LOCAL}GPU:0"] * 2))
    stamps.add(graph_def)

    assert 3 == len(set(_devices(graph_def)))
    stamps.remove(graph_def)
    assert parts == _devices(graph_def)


def test_a_function_runs_where_it_is_called():
    """Nodes that the optimizer takes out of it ask for its caller's device."""
    part = context.logical_name(1)
    graph_def = _graph([f"f@{part}"], {"f": ["g@", "/device:CPU:0"], "g": [""]})
    stamps = Stamps(graph_def, _topology([f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"]))
    stamps.add(graph_def)
    assert ["GPU", "GPU", "CPU", "GPU"] == _kinds(graph_def)
    for function in graph_def.library.function:
        for node in function.node_def:
            graph_def.node.add(name=f"inlined_{len(graph_def.node)}").CopyFrom(node)

    stamps.remove(graph_def)

    assert [part, part, "/device:CPU:0", part] == _devices(graph_def)


@pytest.mark.parametrize(
    ("devices", "functions", "topology", "kinds", "is_complete"),
    [
        # It would pull both calls to one device.
        (["f@", "f@/device:CPU:0"], {"f": [""]}, GPUS, ["GPU", "CPU", ""], False),
        # One graph is optimized for all.
        (["", "/device:CPU:0"], {}, OF_TWO_TYPES, ["", "CPU"], False),
        # The search for callers ends.
        (["f@"], {"f": ["f@"]}, GPUS, ["GPU", "GPU"], True),
    ],
    ids=["a function of two devices", "replicas of two types", "a call of itself"],
)
def test_what_runs_on_two_types_is_not_stamped(
    devices, functions, topology, kinds, is_complete
):
    """So no rule for one type may run."""
    graph_def = _graph(devices, functions)
    stamps = Stamps(graph_def, topology)
    stamps.add(graph_def)

    assert kinds == _kinds(graph_def)
    assert is_complete == stamps.is_complete


@pytest.fixture
def chain(node, make_body):
    """Makes a forward and a backward pass through layers of one variable each."""

    def make(count, *more):
        nodes = [node("batch", "Placeholder")]
        for i in range(count):
            nodes.append(node(f"v{i}", "Placeholder"))
            nodes.append(node(f"read{i}", "ReadVariableOp", f"v{i}"))
        last = "batch"
        for i in range(count):
            nodes.append(node(f"forward{i}", "Mul", last, f"read{i}"))
            last = f"forward{i}"
        for i in reversed(range(count)):
            nodes.append(node(f"backward{i}", "Mul", last, f"read{i}"))
            last = f"backward{i}"
            nodes.append(node(f"write{i}", "AssignSubVariableOp", f"v{i}", last))
        return make_body(*nodes, *more)

    return make


def schedule(body, sizes=None):
    """Schedules the reads of variables of 8 bytes; what computes, varies."""
    handles = [name for name in body.placeholders if name.startswith("v")]
    sizes = sizes or dict.fromkeys(handles, 8)
    depth = body_lib.depths(body, {})
    varying = {n.name for n in body.nodes if n.op == "Mul"}
    return liveness.schedule_gathers(body, sizes, depth, varying)


def _node(found, name):
    return next(node for node in found.body.nodes if node.name == name)


def test_uses_that_are_far_apart_have_a_gather_each(chain):
    """Forward and backward pass, but of the last layers, which are used at once."""
    found = schedule(chain(5))

    uses = [gather.uses for gather in found.gathers]
    assert [
        ("forward0",),
        ("forward1",),
        ("forward2",),
        ("forward3", "backward3"),
        ("forward4", "backward4"),
        ("backward2",),
        ("backward1",),
        ("backward0",),
    ] == uses
    assert {"read0", "read1", "read2"} == set(found.added.values())
    assert "read1/gather_1" == _node(found, "backward1").inputs[1].node


def test_a_later_gather_comes_before_the_write(chain):
    """The value of this step is read, though nothing else orders the two."""
    found = schedule(chain(5))

    assert ("read1/gather_1",) == _node(found, "write1").controls
    order = [node.name for node in found.body.nodes]
    assert order.index("read1/gather_1") < order.index("write1")


def test_small_variables_of_neighbours_arrive_together(chain):
    """A layer has as many bytes as the largest variable at most."""
    found = schedule(chain(4), {"v0": 2, "v1": 2, "v2": 8, "v3": 3})

    first = [(g.uses[0], g.layer) for g in found.gathers[:3]]
    assert [("forward0", 0), ("forward1", 0), ("forward2", 1)] == first


def test_no_value_of_before_a_write_is_read_after_it(node, make_body):
    """What is used later than the write keeps its gather."""
    nodes = [node("batch", "Placeholder")]
    for i in range(4):
        nodes.append(node(f"v{i}", "Placeholder"))
        nodes.append(node(f"read{i}", "ReadVariableOp", f"v{i}"))
    nodes.append(node("use0", "Mul", "batch", "read0"))
    nodes.append(node("write0", "AssignVariableOp", "v0", "use0", "^read0"))
    last = "use0"
    for i in (1, 2, 3):
        nodes.append(node(f"use{i}", "Mul", last, f"read{i}"))
        last = f"use{i}"
    nodes.append(node("late", "Mul", last, "read0"))

    found = schedule(make_body(*nodes))

    assert {} == found.added
    assert ("use0", "late") == found.gathers[0].uses


def test_reads_of_updates_stay(node, make_body):
    """Their owner makes them, and gets nothing."""
    body = make_body(
        node("v0", "Placeholder"),
        node("read0", "ReadVariableOp", "v0"),
        node("decayed", "Square", "read0"),
    )

    found = schedule(body)

    assert body == found.body
    assert () == found.gathers
