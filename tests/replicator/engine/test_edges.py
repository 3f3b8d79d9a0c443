"""Edges between devices are counted as TensorFlow sends them."""

from __future__ import annotations

from replicator.engine.graph.body import make_node
from replicator.engine.run import edges

A, B, C = "/device:CPU:0", "/device:CPU:1", "/device:CPU:2"


def test_a_device_gets_a_tensor_and_a_signal_once():
    """However many of its nodes use it; two devices get two."""
    nodes = [
        make_node("first", "Split", [], A),
        make_node("near", "Neg", ["first:output:0"], A, controls=["first"]),
        make_node("far", "Add", ["first:output:0", "first:output:1"], B),
        make_node("again", "Neg", ["first:output:0"], B, controls=["near"]),
        make_node("waits", "NoOp", [], B, controls=["near"]),
        make_node("third", "Neg", ["first:output:0"], C, controls=["near"]),
        make_node("anywhere", "Neg", ["first:output:0", "argument_0"], ""),
    ]
    found = edges.count(nodes, ["near", "waits", "anywhere"], A)

    assert found == edges.Edges(num_values=3, num_signals=3)
    assert str(found).endswith("3 tensor(s) and 3 signal(s) without a value")
