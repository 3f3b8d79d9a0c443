"""Reduction: one operand per replica becomes one result per memory, as in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.graph.emitter import Emitter
from replicator.engine.link.chain import Chain
from replicator.engine.link.reduction import How, Reduction
from replicator.placement.topology import make_topology
from replicator.placement.worker_group import FlatGroup, Keys

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
SHAPE = tf.TensorShape([3])
NUMPY = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}


def make_plan(op, num_replicas, *, wire_dtype=None, algorithm="add_n", owner=0):
    """How one tensor is reduced."""
    return How(
        op=op,
        wire_dtype=wire_dtype,
        algorithm=algorithm,
        num_replicas=num_replicas,
        owner=owner,
    )


def make_reduction(memories, emit, workers=None, first_device=0, chain=None):
    """Emits reductions of one replica per CPU, some of which share memory."""
    devices = CPU[first_device : first_device + len(memories)]
    topology = make_topology([[device] for device in devices])
    topology = dataclasses.replace(topology, memories=memories)
    return Reduction(topology, emit, workers, chain)


def arrays(num_replicas):
    """A value per replica, of which bfloat16 loses digits."""
    rng = np.random.default_rng(3)
    return [rng.normal(size=3).astype(np.float32) for _ in range(num_replicas)]


def reduce_all(execute, plan, memories, owner, values):
    """Both halves; returns the results by memory, and nodes."""
    emit = Emitter()
    reduction = make_reduction(memories, emit)
    plan = dataclasses.replace(plan, owner=owner)
    op = plan.op
    operands = [f"x_{r}" for r in range(len(memories))]
    left = reduction.within_memories(op, "near", operands, tf.float32)
    refs = reduction.between_memories(plan, "far", left, tf.float32, SHAPE)
    arguments = {f"x_{r}": value for r, value in enumerate(values)}
    return execute(emit.nodes, arguments, [(ref, tf.float32) for ref in refs]), emit


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize(
    "memories",
    [(0,), (0, 0, 0), (0, 1, 2), (0, 0, 2, 2), (0, 1, 0, 1)],
    ids=["one replica", "one memory", "each its own", "two pairs", "dealt out"],
)
def test_every_memory_has_the_reduction_of_all_replicas(execute, op, memories):
    """One result per memory, bit by bit the same; any owner may combine."""
    values = arrays(len(memories))
    plan = make_plan(op, len(memories))
    expected = NUMPY[op](values, axis=0)

    for owner in range(len(memories)):
        results, _ = reduce_all(execute, plan, memories, owner, values)

        assert len(set(memories)) == len(results)
        for result in results:
            np.testing.assert_array_equal(results[0], result)
            np.testing.assert_allclose(expected, result, rtol=1e-6)


def test_replicas_of_one_memory_are_reduced_there_first():
    """On the first device of the memory, and those of a memory of their own not."""
    emit = Emitter()
    reduction = make_reduction((0, 1, 1), emit)

    left = reduction.within_memories("sum", "near", ["a", "b", "c"], tf.float32)

    (total,) = emit.nodes
    assert (0, 1) == reduction.memories
    assert "a" == left[0]
    assert (CPU[1], ["b", "c"]) == (total.device, list(total.input))


def test_where_nothing_travels_the_owner_reduces_everything_at_once():
    """One node instead of one within the memory and one on the owner."""
    emit = Emitter()
    reduction = make_reduction((0, 0, 0), emit)

    left = reduction.within_memories("sum", "near", ["a", "b", "c"], tf.float32)
    reduction.between_memories(
        make_plan("sum", 3, owner=2), "far", left, tf.float32, SHAPE
    )

    (total,) = emit.nodes
    assert (CPU[2], ["a", "b", "c"]) == (total.device, list(total.input))


def rounded(value):
    """The value in bfloat16, and back."""
    return tf.cast(tf.cast(value, tf.bfloat16), tf.float32).numpy()


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_what_travels_is_rounded_and_summed_in_full_width(execute, op):
    """The owner's own operand is not; the result is, so that all have the same bits."""
    values = arrays(3)
    plan = make_plan(op, 3, wire_dtype=tf.bfloat16)

    results, _ = reduce_all(execute, plan, (0, 1, 2), 1, values)

    arrived = [rounded(values[0]), values[1], rounded(values[2])]
    expected = rounded(NUMPY[op](arrived, axis=0))
    for result in results:
        np.testing.assert_array_equal(expected, result)


def test_the_operand_of_the_owners_memory_is_not_rounded(execute):
    """The owner may be the second replica of its memory."""
    values = arrays(3)
    plan = make_plan("sum", 3, wire_dtype=tf.bfloat16)

    results, _ = reduce_all(execute, plan, (0, 1, 1), 2, values)

    expected = rounded(rounded(values[0]) + (values[1] + values[2]))
    for result in results:
        np.testing.assert_array_equal(expected, result)


def test_nothing_is_rounded_where_nothing_travels(execute):
    """Replicas of one memory."""
    values = arrays(3)
    plan = make_plan("sum", 3, wire_dtype=tf.bfloat16)

    (result,), emit = reduce_all(execute, plan, (0, 0, 0), 0, values)

    np.testing.assert_allclose(np.sum(values, axis=0), result, rtol=1e-6)
    assert ["AddN"] == [node.op for node in emit.nodes]


@pytest.mark.parametrize("op", ["sum", "mean", "min"])
def test_workers_are_combined_after_the_replicas_of_each(execute, workers, op):
    """Two workers of two replicas; a mean is over all four."""
    values = arrays(4)
    plan = make_plan(op, 4, owner=1)
    nodes, outputs = [], []
    for worker, cross_worker in enumerate(workers(2)):
        reduction = make_reduction(
            (0, 1), cross_worker.emit, cross_worker, first_device=2 * worker
        )
        operands = [f"x_{2 * worker + r}" for r in range(2)]
        left = reduction.within_memories(op, f"w{worker}_near", operands, tf.float32)
        refs = reduction.between_memories(plan, f"w{worker}", left, tf.float32, SHAPE)
        nodes += cross_worker.nodes
        outputs += [(ref, tf.float32) for ref in refs]

    results = execute(nodes, {f"x_{r}": v for r, v in enumerate(values)}, outputs)

    assert 4 == len(results)
    for result in results:
        np.testing.assert_array_equal(results[0], result)
        np.testing.assert_allclose(NUMPY[op](values, axis=0), result, rtol=1e-6)


def test_one_memory_of_one_of_several_workers_travels(workers):
    """It is reduced within, and rounded before it leaves."""
    cross_worker, _ = workers(2)
    reduction = make_reduction((0, 0), cross_worker.emit, cross_worker)
    plan = make_plan("sum", 4, wire_dtype=tf.bfloat16)

    left = reduction.within_memories("sum", "near", ["a", "b"], tf.float32)
    reduction.between_memories(plan, "far", left, tf.float32, SHAPE)

    assert 1 == len(left)
    sent = [node for node in cross_worker.nodes if node.op == "Cast"]
    assert tf.bfloat16.as_datatype_enum == sent[0].attr["DstT"].type


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_nccl_takes_one_operand_of_each_device(op):
    """One op per replica, all of one instance; a mean is scaled where it arrives."""
    emit = Emitter()
    flat = FlatGroup(size=2, key=7, keys=Keys())
    chain = Chain(None, emit, [], flat)
    reduction = make_reduction((0, 1), emit, chain=chain)
    plan = make_plan(op, 2, algorithm="nccl", wire_dtype=tf.float16)

    refs = reduction.between_memories(plan, "far", ["a", "b"], tf.float32, SHAPE)

    kernels = [node for node in emit.nodes if node.op == "CollectiveReduceV2"]
    scaled = [node for node in emit.nodes if node.op == "Mul"]
    assert ["far/all_0", "far/all_1"] == [node.name for node in kernels]
    assert [tf.float16.as_datatype_enum] * 2 == [n.attr["T"].type for n in kernels]
    assert CPU[:2] == [node.device for node in kernels]
    assert (2 if op == "mean" else 0) == len(scaled)
    assert ["far/receive_0", "far/receive_1"] == [ref.node for ref in refs]
