"""Model parallelism: replicas that are split over several logical devices."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf
from tiny_models import Training, take_cpus_for_gpus

import replicator
from replicator._tf import compat as _tf_compat

HOST = "/job:localhost/replica:0/task:0/device:CPU:"


def _make(backend, num_replicas, **options):
    names = [f"CPU:{i}" for i in range(2 * num_replicas)]
    return replicator.create(
        backend,
        num_replicas=num_replicas,
        devices=names,
        logical_devices_per_replica=2,
        **options,
    )


def test_variables_and_slots_are_on_the_part_that_made_them():
    repl = _make("in_graph", 2, variable_placement="mirrored")
    training = Training(repl, "split")

    training.run(1)

    assert [f"{HOST}{part}" for part in (0, 0, 1, 1)] == [
        weight.value.device for weight in training.model.weights
    ]
    placed = {
        entry.variable.name.partition(":")[0]: [copy.device for copy in entry.copies]
        for entry in repl._table.entries()
        if "kernel" in entry.variable.name
    }
    parts = {tuple(devices) for devices in placed.values()}
    assert {(f"{HOST}0", f"{HOST}2"), (f"{HOST}1", f"{HOST}3")} == parts


def _linked_functions(call):
    """Functions that a call registers for replicas; the runtime knows their devices."""
    added, original = [], _tf_compat.keep_functions

    def keep(owner, functions):
        added.extend(functions)
        original(owner, functions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tf_compat, "keep_functions", keep)
        call()
    names = {node.device for function in added for node in function.node_def}
    assert {HOST} == {name[:-1] for name in names if name}
    return [
        function
        for function in added
        if any(node.name.startswith("replica_") for node in function.node_def)
    ]


def test_gradients_run_where_their_forward_ops_ran():
    """TanhGrad is named after no forward op; it runs where its tanh ran."""
    first, second = tf.Variable(tf.ones([3, 4])), tf.Variable(tf.ones([4, 2]))

    def step(x):
        with tf.GradientTape() as tape:
            with replicator.logical_device(0):
                h = tf.tanh(tf.matmul(x, first, name="first"))
            with replicator.logical_device(1):
                y = tf.tanh(tf.matmul(h, second, name="second"))
            loss = tf.reduce_sum(y, name="loss")
        return loss, tape.gradient(loss, [first, second])

    repl, x = _make("in_graph", 2), replicator.PerReplica([tf.ones([2, 3])] * 2)
    (linked,) = _linked_functions(lambda: repl.run(step, x))
    parts = collections.defaultdict(set)
    for node in linked.node_def:
        if node.op in ("MatMul", "Tanh", "TanhGrad", "Sum"):
            name = re.search("first|second|loss", node.name)
            parts[node.op, name and name[0]].add(int(node.device[-1]) % 2)

    assert {0} == parts["MatMul", "first"]
    assert {1} == parts["MatMul", "second"] == parts["Sum", "loss"]
    assert {0, 1} == parts["Tanh", None] == parts["TanhGrad", None]


def _part_of_a_variable():
    with _make("in_graph", 1).context():
        replicator.logical_device(2)


def _part_of_a_step():
    def step():
        with replicator.logical_device(2):
            return tf.constant(0)

    _make("in_graph", 1).run(step)


MISSING = r"logical_device\(2\) does not exist: a replica here has 2; use 0 to 1"
REFUSED = [
    (_part_of_a_variable, MISSING),
    (_part_of_a_step, MISSING),
    (
        lambda: replicator.logical_device(0),
        r"logical_device\(0\) was called outside a replica; .*step function",
    ),
    (
        lambda: replicator.create(
            "in_graph", num_replicas=32, logical_devices_per_replica=2
        ),
        r"32 replicas of 2 logical devices need 64 devices: 64 virtual CPU",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_parts_that_do_not_exist_are_refused(call, message):
    with pytest.raises(replicator.DeviceError, match=message):
        call()


def test_backends_that_do_not_split_have_part_0_only():
    repl = replicator.create("tf_mirrored", num_replicas=1, devices=["CPU:0"])

    def step():
        with replicator.logical_device(0):
            return tf.constant(3)

    assert 3 == int(repl.run(step)[0])
    with (
        pytest.raises(replicator.DeviceError, match=r"has 1; use 0 to 0"),
        repl.context(),
    ):
        replicator.logical_device(1)


@pytest.mark.parametrize("have_own_memories", [False, True], ids=["shared", "own"])
def test_a_gradient_is_reduced_where_its_variable_is(monkeypatch, have_own_memories):
    """Between the parts of a replica are activations and what flows back, no more.

    As on GPUs where memories are their own: each part has a ring over all replicas.
    """
    if have_own_memories:
        take_cpus_for_gpus(monkeypatch.setattr)
    repl = _make("in_graph", 2)
    training = Training(repl, "split", "momentum")

    (linked,) = _linked_functions(lambda: training.run(3))

    nodes = {node.name: node for node in linked.node_def}
    parts = {
        name: int(node.device[-1]) % 2 for name, node in nodes.items() if node.device
    }
    crossing = [
        (source, node.name)
        for node in nodes.values()
        for text in node.input
        if (source := text.lstrip("^").partition(":")[0]) in nodes
        and parts.get(source) != parts.get(node.name)
    ]
    assert {f"{HOST}{i}" for i in range(4)} <= {node.device for node in nodes.values()}
    assert crossing  # activations
    assert not [edge for edge in crossing if "collective_" in "".join(edge)]
    assert {0, 1} == {part for name, part in parts.items() if "/collective_" in name}
    for place in range(0 if have_own_memories else 4):
        owner = f"owner {place // 2} ({HOST}{place}): combines"
        assert owner in repl.explain()
    monkeypatch.undo()
    alone = Training(_make("in_graph", 1), "split", "momentum")
    alone.run(3)
    for expected, got in zip(alone.weights(), training.weights(), strict=True):
        np.testing.assert_allclose(expected, got, rtol=2e-4, atol=1e-5)
