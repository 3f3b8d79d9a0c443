"""Gate: where the condition is false nothing runs, and the result has no elements."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.graph.emitter import Emitter
from replicator.engine.link.gate import Gate
from replicator.placement.topology import make_topology

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def topology(memories):
    """One replica per device, of which some are taken to share memory."""
    made = make_topology([[device] for device in CPU[: len(memories)]])
    return dataclasses.replace(made, memories=memories)


def gated(memories=(0,), shape=(2, 2), dtype=tf.float32):
    """A gate, and the nodes of it: every replica negates what passes."""
    emit = Emitter()
    conditions = [f"needed_{r}" for r in range(len(memories))]
    gate = Gate("gate", topology(memories), conditions, emit)
    negated = []
    for r in range(len(memories)):
        passed = gate.operand(r, "x", f"x_{r}", dtype)
        negated.append(
            emit.add(f"negated_{r}", "Neg", [passed], CPU[r], "y:0", {"T": dtype})
        )
    return gate.results(negated, dtype, tf.TensorShape(shape)), emit.nodes


@pytest.mark.parametrize("value", [[[1.0, 2.0], [3.0, 4.0]], [1.0], 5.0])
def test_where_the_condition_holds_the_result_passes(execute, value):
    """Of any rank."""
    (result,), nodes = gated(shape=np.shape(value))
    arguments = {"x_0": np.float32(value), "needed_0": True}

    (found,) = execute(nodes, arguments, [(result, tf.float32)])

    np.testing.assert_array_equal(-np.float32(value), found)


@pytest.mark.parametrize(
    ("shape", "expected"), [((2, 2), (0, 0)), ((3,), (0,)), ((), ()), (None, ())]
)
def test_elsewhere_the_result_has_the_rank_and_no_elements(execute, shape, expected):
    """Reductions and elementwise ops take it; a scalar is zero."""
    (result,), nodes = gated(shape=shape)
    arguments = {"x_0": np.zeros(shape or (), np.float32) + 7, "needed_0": False}

    (found,) = execute(nodes, arguments, [(result, tf.float32)])

    assert expected == found.shape
    assert 0.0 == found.sum()


def test_what_is_behind_the_gate_runs_only_if_it_is_needed(execute):
    """A check that fails whenever it runs."""
    emit = Emitter()
    gate = Gate("gate", topology((0,)), ["needed"], emit)
    passed = gate.operand(0, "x", "x", tf.float32)
    attrs = {"T": tf.float32, "message": "it ran"}
    checked = emit.add("check", "CheckNumerics", [passed], CPU[0], "output:0", attrs)
    (result,) = gate.results([checked], tf.float32, tf.TensorShape([1]))
    outputs = [(result, tf.float32)]

    assert (
        []
        == execute(emit.nodes, {"x": np.float32([np.inf]), "needed": False}, outputs)[
            0
        ].tolist()
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="it ran"):
        execute(emit.nodes, {"x": np.float32([np.inf]), "needed": True}, outputs)


def test_each_replica_asks_its_own_condition_on_its_own_device(execute):
    """No operand leaves its device before the gate."""
    results, nodes = gated(memories=(0, 1, 2))
    switches = [node for node in nodes if node.name.startswith("gate/operand")]
    arguments = {f"x_{r}": np.full([2, 2], r, np.float32) for r in range(3)}
    arguments |= {f"needed_{r}": True for r in range(3)}

    found = execute(nodes, arguments, [(result, tf.float32) for result in results])

    assert CPU[:3] == [node.device for node in switches]
    assert [[f"x_{r}", f"needed_{r}"] for r in range(3)] == [
        list(node.input) for node in switches
    ]
    assert [0.0, -1.0, -2.0] == [value[0, 0] for value in found]


def test_a_result_is_merged_once_per_memory_that_uses_it():
    """Replicas 0 and 2 share memory and have the same result; 1 has it elsewhere."""
    emit = Emitter()
    conditions = [f"needed_{r}" for r in range(3)]
    gate = Gate("gate", topology((0, 1, 0)), conditions, emit)
    total = gate.operand(0, "x", "x", tf.float32)

    results = gate.results([total] * 3, tf.float32, tf.TensorShape([2]))

    merges = [node for node in emit.nodes if node.op == "Merge"]
    assert CPU[:2] == [node.device for node in merges]
    assert results[0] == results[2] != results[1]


def test_results_of_two_tensors_are_merged_apart():
    """One gate of a call with two tensors."""
    emit = Emitter()
    gate = Gate("gate", topology((0,)), ["needed"], emit)
    first = gate.operand(0, "x", "x", tf.float32)
    second = gate.operand(0, "y", "y", tf.float32)
    shape = tf.TensorShape([2])

    results = [gate.results([ref], tf.float32, shape) for ref in (first, second)]

    assert results[0] != results[1]
    names = [node.name for node in emit.nodes]
    assert len(names) == len(set(names))
