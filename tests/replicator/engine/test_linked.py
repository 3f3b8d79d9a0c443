"""Linked collectives: values are NumPy's, what they cost, and in which order they meet.

In one process whose devices are taken to be in several memories, in one with GPUs that
are only looked at, and in three worker processes; of two, they are asked for in
``test_between_graph.py``. ``test_flat.py`` runs the ops of GPUs on virtual devices.
"""

from pathlib import Path
from unittest import mock

import case_cluster
import keras
import linked_collectives
import numpy as np
import pytest
import tensorflow as tf
from graphs import linked, on_devices
from linked_collectives import (
    CALLS,
    OPS,
    Order,
    check_small,
    check_values,
    const,
    count,
    emitted,
    in_one_call,
    specs,
    values,
)

import replicator
from replicator.core import devices

FOUR = [f"CPU:{r}" for r in range(4)]
MEMORIES = {
    "each its own": (0, 1, 2, 3),
    "two pairs": (0, 0, 2, 2),
    "in turn": (0, 1, 0, 1),
}


def make(memories, **options):
    """Replicas of one process whose devices are taken to be in these memories."""

    def memory(device):
        return str(memories[int(device.rpartition(":")[2])])

    with mock.patch.object(devices, "memory", memory):
        count = len(memories)
        return replicator.create(
            "in_graph", num_replicas=count, devices=FOUR[:count], **options
        )


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("memories", MEMORIES)
@pytest.mark.parametrize("are_known", [True, False], ids=["static", "unknown"])
def test_results_are_those_of_numpy(memories, are_known):
    check_values(make(MEMORIES[memories]), are_known=are_known)


@pytest.mark.parametrize(
    ("name", "op", "num_nodes"),
    [
        ("sum", "AddN", 4),
        ("gather", "Pack", 4),
        ("last", "", 0),
        ("pipeline", "ZerosLike", 4),
    ],
)
def test_replicas_of_one_memory_cost_one_node_per_tensor(name, op, num_nodes):
    nodes = emitted(make((0, 0, 0, 0)), in_one_call(CALLS[name]), *specs())

    assert num_nodes == len(nodes) == count(nodes, op)


def test_replicas_of_one_memory_are_reduced_there_first():
    repl, step = make((0, 0, 2, 2)), in_one_call(replicator.all_mean)

    nodes = emitted(repl, step, *specs())

    # Within memories each tensor by itself, between them one bucket per type.
    assert 2 * 4 + 2 == count(nodes, "AddN")
    assert 2 == count(nodes, "Mul")
    assert 2 == repl.counts()["collectives"]


def rounded(value):
    return tf.cast(tf.cast(value, tf.bfloat16), value.dtype).numpy()


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("memories", [(0, 1, 2), (0, 1, 1)], ids=str)
def test_what_is_sent_is_rounded_and_summed_in_full_width(op, memories):
    """The owner's own memory is not; the result is, so that all have the same bits."""
    xs = list(np.random.default_rng(3).normal(size=(3, 5)).astype("f4"))
    repl = make(memories)

    def step(x):
        return replicator.all_reduce(x, op, compression="bfloat16")

    results = repl.run(step, replicator.PerReplica(xs))

    assert "owner 0 (/job:localhost/replica:0/task:0/device:CPU:0): combines 10 b" in (
        repl.explain()
    )
    combine = np.max if op == "max" else np.sum
    partial = {
        m: combine([x for x, own in zip(xs, memories, strict=True) if own == m], axis=0)
        for m in set(memories)
    }
    total = combine([rounded(x) if m else x for m, x in partial.items()], axis=0)
    expected = rounded(total * np.float32(1 / 3) if op == "mean" else total)
    for result in results:
        np.testing.assert_array_equal(expected, result)


@pytest.mark.parametrize("memories", ["each its own", "in turn"])
def test_sums_travel_in_calls_that_update(memories):
    """In the others, they have no elements."""
    repl = make(MEMORIES[memories])
    with repl.context():
        weight = tf.Variable(tf.zeros([2, 3]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)

    def step(x):
        optimizer.apply_gradients([(tf.ones_like(weight) * x, weight)])

    x = replicator.PerReplica([tf.constant(float(r)) for r in range(4)])
    for expected in (0.0, -1.5, -1.5, -3.0):
        repl.run(step, x)
        np.testing.assert_allclose(weight, np.full([2, 3], expected), rtol=1e-6)
    nodes = emitted(repl, step, tf.TensorSpec([]))
    nothing = [node for node in nodes if node.name.endswith("/nothing")]
    assert {(0, 0)} == {tf.make_ndarray(n.attr["value"].tensor).shape for n in nothing}


def test_scalars_and_empty_tensors_pass():
    check_small(make((0, 0)))


def process(device):
    """Two of four CPU devices of this process are taken for those of each of two."""
    return f"process {int(device.rpartition(':')[2]) // 2}"


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("compression", [None, "bfloat16"])
def test_a_bucket_crosses_between_processes_once_there_and_once_back(
    monkeypatch, op, compression
):
    monkeypatch.setattr(devices, "process", process)
    given = [x.astype("f4") for x in values(4)]
    repl = make((0, 1, 2, 3))

    def call(xs):
        return replicator.all_reduce(xs, op, compression=compression)

    step = in_one_call(call)
    nodes = emitted(repl, step, *[tf.TensorSpec(x.shape[1:]) for x in given])
    placed = {node.name: process(node.device) for node in nodes}
    crossings = {
        (text, node.device)
        for node in nodes
        for text in node.input
        if placed.get(text.partition(":")[0], placed[node.name]) != placed[node.name]
    }
    assert 1 == repl.counts()["collectives"]
    assert 2 == len(crossings)
    tolerance = 1e-5 if compression is None else 2e-2
    results = repl.run(call, [replicator.PerReplica(list(x)) for x in given])
    for of_all, found in zip(given, results, strict=True):
        want = getattr(of_all, op)(0)
        np.testing.assert_allclose(want, found[0], rtol=tolerance, atol=tolerance)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


# GPUs of one process.
GPUS = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(8)]


@pytest.mark.parametrize(("gpus_per_card", "hint"), [(1, b"nccl"), (3, b"ring")])
def test_gpus_meet_in_one_op_per_transfer(gpus_per_card, hint):
    """One op per replica, on its device; NCCL refuses two parts of one GPU.

    NCCL starts the parts of one op on all devices at once, in one order: ops wait for
    nothing but their operands. One that waited for the end of its predecessor would be
    queued behind a backward pass.
    """
    repl = on_devices(GPUS[:3], gpus_per_card=gpus_per_card)

    step = in_one_call(replicator.all_sum)
    function = linked(repl, step, *map(tf.TensorSpec, [[4], [7_000_000], []]))

    by_instance, groups = {}, set()
    for node in function.node_def:
        if node.op != "CollectiveReduceV2":
            continue
        keys = [const(function, text) for text in node.input[1:4]]
        (size, _), (group, _), (instance, _) = keys
        assert 3 == size
        groups.add(group)
        assert hint == node.attr["communication_hint"].s
        assert not [text for text in node.input if text.startswith("^")]
        by_instance.setdefault(instance, []).append(node.device)
        for _, key in keys:
            # int32 on a GPU is in host memory: the keys cross no device.
            assert (node.device, "Const", []) == (key.device, key.op, [*key.input])
    order = Order(function)
    assert order.ends == {order.short(node.name) for node in order.all}
    assert 1 == len(groups)
    assert 2 == repl.counts()["collectives"] == len(by_instance)
    assert [GPUS[:3]] * 2 == list(by_instance.values())
    ends = {node.name: node.device for node in function.node_def}
    results = [ends[text.partition(":")[0]] for text in function.ret.values()]
    assert sorted(GPUS[:3] * 3) == sorted(results)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("GPU", tf.float32, "GPU:2"),
        ("GPU", tf.int8, "CPU:0"),
        ("CPU", tf.int8, "CPU:2"),
    ],
)
def test_a_type_without_gpu_kernel_is_combined_on_the_cpu_of_the_same_process(
    kind, dtype, expected
):
    names = [f"/job:worker/replica:0/task:3/device:{kind}:{i}" for i in (2, 1)]

    spec = tf.TensorSpec([None], dtype)
    nodes = emitted(on_devices(names), replicator.all_sum, spec)

    (total,) = [node for node in nodes if node.op == "AddN"]
    assert f"/job:worker/replica:0/task:3/device:{expected}" == total.device


NUM_WORKERS = 3


@pytest.fixture(scope="module")
def three_workers(tmp_path_factory):
    folder, path = tmp_path_factory.mktemp("workers"), linked_collectives.__file__
    return case_cluster.ran(
        "linked_collectives", folder, path=Path(path).parent, num_workers=NUM_WORKERS
    )


@pytest.mark.processes
@pytest.mark.parametrize("case", linked_collectives.CASES)
def test_three_workers(three_workers, case):
    assert [None] * NUM_WORKERS == three_workers.values(case)
