"""Measuring controls: the step without its communication, and nothing for training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import replicator
from replicator.catalog import BACKENDS

CONTROLS = {
    "in_graph": {},
    "in_graph_devices": {"devices": ["CPU:0", "CPU:1"]},
    "in_graph_mirrored": {
        "devices": ["CPU:0", "CPU:1"],
        "variable_placement": "mirrored",
    },
    "tf_mirrored": {"devices": ["CPU:0", "CPU:1"]},
}
NO_CONTROL = sorted(n for n, info in BACKENDS.items() if info.no_control_because)
SHARED = ("in_graph", "in_graph_devices")
# One copy for two devices is left to the full run, as elsewhere.
NAMES = [
    pytest.param(name, marks=pytest.mark.full) if name == "in_graph_devices" else name
    for name in CONTROLS
]
IN_GRAPH = NAMES[:3]

# Sums of four float32 products in another order: a few roundings.
TOLERANCE = 1e-6


def _create(name, *, is_control=True):
    backend = "tf_mirrored" if name == "tf_mirrored" else "in_graph"
    return replicator.create(
        backend, num_replicas=2, without_communication=is_control, **CONTROLS[name]
    )


def _data(replica):
    return np.random.default_rng(replica).normal(size=(4, 3)).astype(np.float32)


class _Training:
    def __init__(self, repl, optimizer=None):
        self.repl = repl
        with repl.context():
            self.weights = tf.Variable(tf.ones([3, 1]), name="weights")
            self.optimizer = repl.wrap_optimizer(
                optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
            )

    def step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ self.weights - 1.0) ** 2)
        grads = tape.gradient(loss, [self.weights])
        self.optimizer.apply_gradients(zip(grads, [self.weights], strict=True))
        return loss

    def losses(self, batches):
        values = replicator.PerReplica([tf.constant(batch) for batch in batches])
        return [float(loss) for loss in self.repl.run(self.step, values)]


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_independent_programs(name):
    """The first ones of each replica are those of a single device on its batch.

    With variables of their own all are; shared ones are updated by one replica.
    """
    batches = [_data(0), _data(1)]
    alone = [_Training(replicator.create("single")) for _ in batches]
    expected = [
        [one.losses([batch])[0] for _ in range(5)]
        for one, batch in zip(alone, batches, strict=True)
    ]
    once = _Training(replicator.create("single"))
    once.losses([batches[0]])

    training = _Training(_create(name))
    losses = [training.losses(batches)]
    if name in SHARED:
        np.testing.assert_allclose(
            training.weights.numpy(), once.weights.numpy(), rtol=TOLERANCE
        )
    else:
        losses += [training.losses(batches) for _ in range(4)]

    found = np.transpose(losses)
    np.testing.assert_allclose(found, np.asarray(expected)[:, : len(losses)], rtol=1e-5)
    assert "measuring control, whose replicas diverge. Nothing is communicated" in (
        training.repl.explain()
    )


def _functions(call):
    known = set(eager_context.context().list_function_names())
    call()
    context = eager_context.context()
    added = set(context.list_function_names()) - known
    found = [context.get_function_def(name) for name in added]
    return [f for f in found if any(n.name.startswith("replica_") for n in f.node_def)]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", IN_GRAPH)
@pytest.mark.parametrize("kind", ["Lion", "Adam"])
def test_the_control_computes_what_the_step_computes(name, kind):
    """The replicas have as many nodes; no node of a collective is left.

    The step ends after the gradients of all replicas, also those not applied.
    """
    make = getattr(keras.optimizers, kind)

    def function_of(*, is_control):
        training = _Training(_create(name, is_control=is_control), make(0.1))
        (found,) = _functions(lambda: training.losses([_data(0), _data(1)]))
        return found

    case, control = (function_of(is_control=value) for value in (False, True))

    assert _compute_nodes(case) == _compute_nodes(control)
    assert any("/collective_" in node.name for node in case.node_def)
    assert not any("/collective_" in node.name for node in control.node_def)
    inputs = {
        node.name: {i.lstrip("^").split(":")[0] for i in node.input}
        for node in control.node_def
    }
    front = [ref.split(":")[0] for ref in control.ret.values()]
    front += control.control_ret.values()
    reached = set()
    while front:
        node = front.pop()
        if node in inputs and node not in reached:
            reached.add(node)
            front += inputs[node]
    gradients = {n for n in inputs if n.startswith("replica_") and "MatMul" in n}
    assert {"replica_0", "replica_1"} <= {n.partition("/")[0] for n in gradients}
    assert gradients <= reached


def _compute_nodes(function):
    return sorted(
        (node.op, node.device)
        for node in function.node_def
        if node.name.startswith("replica_")
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_replica_computes_as_if_all_held_its_values(name):
    """Means are the own value, sums R times it, gathers R copies; shapes are kept.

    Where replicas share variables, what depends on nothing else is computed once, as
    in the case: from the values of the first replica.
    """
    repl = _create(name)

    def step(value):
        return {
            "mean": replicator.all_mean(value),
            "sum": replicator.all_sum(value),
            "min": replicator.all_min(value),
            "gather": replicator.all_gather(value),
            "broadcast": replicator.broadcast(value, 0),
            "part": replicator.reduce_scatter(tf.stack([value, 3 * value])),
            "exchange": replicator.all_to_all(tf.stack([value, 3 * value])),
            "permute": replicator.permute(value, [(0, 1), (1, 0)]),
        }

    values = replicator.PerReplica([tf.constant([1.0]), tf.constant([5.0])])
    found = repl.run(step, values)

    for replica, own in enumerate((1.0, 1.0 if name in SHARED else 5.0)):
        mine = (1.0, 15.0)[replica]
        assert {
            "mean": [own],
            "sum": [2 * own],
            "min": [own],
            "gather": [[own], [own]],
            "broadcast": [own],
            # These differ by replica, so that nothing of them is computed once.
            "part": [[2 * mine]],
            "exchange": [[mine], [mine]],
            "permute": [(1.0, 5.0)[replica]],
        } == {kind: value[replica].numpy().tolist() for kind, value in found.items()}


@pytest.mark.parametrize("name", NAMES)
def test_sparse_gradients_keep_their_number_of_rows(name):
    """An embedding is updated by R times the own rows: the work of a real update."""
    repl = _create(name)
    with repl.context():
        table = tf.Variable(tf.zeros([6, 2]), name="table")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        grad = tape.gradient(loss, table)
        optimizer.apply_gradients([(grad, table)])
        return tf.shape(replicator.all_mean(grad).indices)[0]

    ids = replicator.PerReplica([tf.constant([0, 1]), tf.constant([2, 3])])
    counts = repl.run(step, ids)

    assert [int(count) for count in counts] == [4, 4]
    np.testing.assert_allclose(table.numpy()[0], [-1.0, -1.0], rtol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_what_belongs_to_training_is_refused(name, tmp_path):
    repl, optimizer = _create(name), keras.optimizers.SGD()
    for what, call in {
        r"assert_in_sync\(\)": repl.assert_in_sync,
        r"make_checkpoint_manager\(\)": lambda: repl.make_checkpoint_manager(
            tmp_path, x=tf.Module()
        ),
        "sharded_update": lambda: repl.wrap_optimizer(optimizer, sharded_update=True),
    }.items():
        with pytest.raises(
            replicator.ReplicatorError,
            match=f"^{what} does not work with without_communication=True: .* diverge; "
            "create the replicator without this option to train$",
        ):
            call()


def test_a_backend_without_a_control_says_why():
    for backend in NO_CONTROL:
        with pytest.raises(
            replicator.ReplicatorError,
            match=f"^backend '{backend}' has no control without communication: .{{10,}}"
            "; use one of in_graph, multi_worker, multi_worker_in_graph, tf_mirrored$",
        ):
            replicator.create(backend, num_replicas=1, without_communication=True)
