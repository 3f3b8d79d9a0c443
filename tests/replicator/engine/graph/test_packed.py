"""Packed: which variables fit a pack, and the graph of a step that uses one."""

from __future__ import annotations

import pytest
import tensorflow as tf

from replicator.engine.graph import packed


@pytest.fixture
def statistics(node, make_body):
    """Makes a chain of layers, each of which reads and writes a variable."""

    def make(count, *more):
        nodes, last = [node("batch", "Placeholder")], "batch"
        for i in range(count):
            nodes += [
                node(f"v{i}", "Placeholder"),
                node(f"read{i}", "ReadVariableOp", f"v{i}"),
                node(f"layer{i}", "AddV2", last, f"read{i}"),
                node(f"write{i}", "AssignVariableOp", f"v{i}", f"layer{i}"),
            ]
            last = f"layer{i}"
        return make_body(*nodes, *more)

    return make


def fits(body, named=()):
    """The variables that fit, in the order of their numbers."""
    handles = {name for name in body.placeholders if name.startswith("v")}
    return sorted(packed.fitting(body, handles, set(named)))


def test_variables_that_are_read_and_then_written_fit(statistics):
    """However the values of one depend on those of another."""
    assert ["v0", "v1", "v2"] == fits(statistics(3))


@pytest.mark.parametrize(
    ("nodes", "rest"),
    [
        ([("again", "ReadVariableOp", "v1", "^write1")], ["v0", "v2"]),
        ([("again", "ReadVariableOp", "v1", "^write0")], ["v0", "v2"]),
        ([("more", "AssignVariableOp", "v1", "batch")], ["v0", "v2"]),
        ([("more", "AssignAddVariableOp", "v1", "batch")], ["v0", "v2"]),
        ([("more", "StatefulPartitionedCall", "v1")], ["v0", "v2"]),
        ([("more", "Identity", "v1")], ["v0", "v2"]),
        ([("more", "Neg", "batch", "^v1")], ["v0", "v2"]),
        (
            [
                ("v3", "Placeholder"),
                ("more", "AssignVariableOp", "v3", "batch", "^write0"),
            ],
            ["v0", "v1", "v2"],
        ),
        ([("v3", "Placeholder")], ["v0", "v1", "v2"]),
    ],
    ids=[
        "read after its write",
        "read after another's write",
        "written twice",
        "added to",
        "given to a function",
        "its handle is a value",
        "waited for",
        "written after another's write",
        "not used",
    ],
)
def test_all_else_keeps_variables_of_its_own(statistics, node, nodes, rest):
    """The others still fit."""
    assert rest == fits(statistics(3, *(node(*fields) for fields in nodes)))


def test_a_read_whose_result_is_used_by_name_stays(statistics):
    """As an output of the step."""
    assert ["v0", "v2"] == fits(statistics(3), named=["read1"])


def layout(**handles):
    """A pack of four variables of 2, 3, 4 and 5 elements."""
    return packed.Layout(sizes=(2, 3, 4, 5), dtype=tf.float32, handles=handles)


def test_a_pack_is_read_once_and_written_once(statistics):
    """What is not written, or not in this step, is written as it was read."""
    body, instead = packed.pack(statistics(2), {"p": layout(v0=3, v1=1)})
    nodes = {node.name: node for node in body.nodes}

    assert "p" in body.placeholders
    assert not nodes.keys() & {"read0", "read1", "write0", "write1"}
    assert ["batch:output:0", "p/parts:output:3"] == [*map(str, nodes["layer0"].inputs)]
    assert [
        "p/parts:output:0",
        "layer1:z:0",
        "p/parts:output:2",
        "layer0:z:0",
        "p/axis:output:0",
    ] == [*map(str, nodes["p/whole"].inputs)]
    assert ("p/read",) == nodes["p/write"].controls
    assert {
        "read0": ("p/read",),
        "read1": ("p/read",),
        "write0": ("p/write",),
        "write1": ("p/write",),
    } == instead
    names = [node.name for node in body.nodes]
    assert names.index("layer1") < names.index("p/write")


def test_what_waited_waits_for_the_pack(statistics, node):
    """For a write, for a read, and through a read for what that waited for."""
    body = statistics(
        1,
        node("v1", "Placeholder"),
        node("first", "Neg", "batch"),
        node("read1", "ReadVariableOp", "v1", "^first"),
        node("takes", "Neg", "read1"),
        node("after_write", "Neg", "batch", "^write0"),
        node("after_read", "Neg", "batch", "^read1"),
    )
    body, _ = packed.pack(body, {"p": layout(v0=0, v1=1)})
    waits = {node.name: node.controls for node in body.nodes}

    assert ("first",) == waits["takes"]
    assert ("p/write",) == waits["after_write"]
    assert ("p/read", "first") == waits["after_read"]
    names = [node.name for node in body.nodes]
    assert names.index("p/write") < names.index("after_write")


def test_a_step_that_only_reads_writes_nothing(node, make_body):
    """Such as an evaluation."""
    body = make_body(
        node("v0", "Placeholder"),
        node("read0", "ReadVariableOp", "v0"),
        node("result", "Neg", "read0"),
    )
    assert ["v0"] == fits(body)
    body, _ = packed.pack(body, {"p": layout(v0=2)})

    assert {"p/read", "p/sizes", "p/axis", "p/parts", "result"} == {
        node.name for node in body.nodes
    }
