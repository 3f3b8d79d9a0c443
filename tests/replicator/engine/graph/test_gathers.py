"""Gathers: which reads are cut, and what each waits for."""

import pytest

from replicator.engine.graph import body as body_lib
from replicator.engine.graph import liveness


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
