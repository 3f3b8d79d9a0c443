"""sharded_update='parameters': a variable is on its owner's device alone."""

import functools

import keras
import moved_bytes
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import Training, copies, dense

import replicator

ADAM = functools.partial(keras.optimizers.Adam, 0.01)
NUM_LAYERS = 16


def _deep():
    return dense(*[12] * (NUM_LAYERS - 1), 3)


@pytest.fixture(scope="module")
def trained():
    training = Training(copies(), _deep, ADAM, sharded_update="parameters")
    training.run(1)
    return training


def _values(training):
    return [*training.model.trainable_variables, *training.optimizer.variables]


def test_each_device_has_a_share_of_the_weights_and_of_their_state(trained):
    """The fullest has at most 0.30 of all, with what is gathered at a time."""
    table = trained.repl._table
    held = table.bytes_by_device(trained.optimizer.variables[2:])
    weights = table.bytes_by_device(trained.model.trainable_variables)
    total = sum(w.nbytes for w in trained.model.get_weights())
    flying = moved_bytes.only_program(trained.repl).most_gathered

    assert 4 == len(weights) == len(held)
    assert total == sum(weights.values())
    assert 2 * total == sum(held.values())
    # A gradient is as large as its weight, and on its owner too.
    fullest = max(2 * weights[device] + held[device] for device in held) + flying
    assert fullest <= 0.30 * 4 * total


def test_a_step_moves_what_the_formula_says(trained):
    """R - 1 times: each sum once, each variable twice, but what is kept in between.

    The first layer has no gradient of its input, biases are used forward only, and the
    last layers go backward while their weights are there.
    """
    program = moved_bytes.only_program(trained.repl)
    moved = moved_bytes.between_devices(moved_bytes.linked_graph(program))
    gathers = program._analysis.gathers
    total = sum(w.nbytes for w in trained.model.get_weights())
    gathered = sum(gather.num_bytes for gather in gathers)

    assert 3 * (total + gathered) == sum(moved.values())
    assert (
        f"a step moves {3 * total} bytes by reductions and {3 * gathered} bytes of "
        f"weights between devices, in {len(gathers)} gathers " in trained.repl.explain()
    )
    kernels = [w.nbytes for w in trained.model.get_weights() if w.ndim == 2]
    assert total + sum(kernels[1:-2]) <= gathered <= total + sum(kernels[1:])


def test_gathers_wait_for_the_layer_before_the_last(trained):
    """In the linked graph, on every replica: no other weights are there meanwhile."""
    program = moved_bytes.only_program(trained.repl)
    graph = moved_bytes.linked_graph(program)
    gathers, order = program._analysis.gathers, program._assembly.copies.order
    reached = {}

    def before(op):
        stack = [op]
        if op.name not in reached:
            found = set()
            while stack:
                one = stack.pop()
                for other in (*one.control_inputs, *(x.op for x in one.inputs)):
                    if other.name not in found:
                        found.add(other.name)
                        stack.append(other)
            reached[op.name] = found
        return reached[op.name]

    count = 0
    for replica in range(trained.repl.num_replicas):
        for gather in gathers:
            uses = {
                order.name(replica, use)
                for earlier in gathers
                if earlier.layer == gather.layer - 2
                for use in earlier.uses
            }
            read = graph.get_operation_by_name(order.name(replica, gather.read))
            assert uses <= before(read)
            count += len(uses)
    assert count >= 4 * 2 * (NUM_LAYERS - 2)


def test_variables_read_and_write_outside_steps(trained):
    """As any other: numpy, assign, a function that is made afterwards."""
    variable = trained.model.trainable_variables[4]
    devices = {v.value.device for v in trained.model.trainable_variables}
    assert set(trained.repl.devices) == devices

    before = variable.numpy()
    variable.assign(before + 1.0)
    seen = trained.repl.run(lambda: tf.reduce_sum(variable))
    outside = tf.function(lambda: tf.reduce_sum(variable))()
    variable.assign(before)

    for value in (*seen.values, outside):
        np.testing.assert_allclose(before.sum() + before.size, value, rtol=1e-5)
    predicted = trained.model.predict(np.ones([2, 12], np.float32), verbose=0)
    assert (2, 3) == predicted.shape


def test_a_function_of_before_does_not_compute_with_old_values():
    """It raises: its variables are elsewhere now."""
    repl = copies(2)
    with repl.context():
        weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
        optimizer = repl.wrap_optimizer(ADAM(), sharded_update="parameters")
    before = tf.function(lambda: tf.tensordot(weights[0], weights[1], axes=1))
    before()

    optimizer.build(weights)

    with pytest.raises(tf.errors.OpError):
        before()
    np.testing.assert_array_equal([3.0, 4.0], weights[1].numpy())


def test_a_step_that_was_traced_before_uses_the_variables_where_they_are():
    """An evaluation before, between and after steps."""
    repl = copies(2)
    with repl.context():
        weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(0.5), sharded_update="parameters"
        )

    def evaluate():
        return tf.add_n(weights)

    def step():
        optimizer.apply_gradients([(tf.ones([2]), w) for w in weights])

    for num_updates in range(3):
        for value in repl.run(evaluate).values:
            np.testing.assert_array_equal(
                np.float32([4.0, 6.0]) - num_updates, value.numpy()
            )
        repl.run(step)


def test_checkpoints_go_from_any_level_to_any(tmp_path):
    """Through levels, numbers of replicas and backends, training is that of one."""
    ways = [
        (copies(2), "gradients"),
        (copies(4), "parameters"),
        (replicator.create("single"), False),
        (copies(2), "parameters"),
    ]
    for place, (repl, level) in enumerate(ways):
        training = Training(repl, "deep", "adam", sharded_update=level)
        manager = training.make_manager(tmp_path)
        if place:
            training.run(1)  # forgotten by restoring
            assert place == manager.restore().step
        training.run_between(place, place + 1)
        manager.save()

    one = Training(replicator.create("single"), "deep", "adam")
    one.run_between(0, len(ways))
    for want, value in zip(one.weights(), training.weights(), strict=True):
        np.testing.assert_allclose(want, value, rtol=1e-5, atol=1e-6)


def test_mixed_precision_gathers_what_it_casts_twice():
    """The cast values of a forward pass are not kept for the backward pass."""
    repl = copies(2)
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")

    def model():
        layers = [keras.layers.Dense(12, dtype=policy) for _ in range(6)]
        return keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(3)])

    training = Training(repl, model, ADAM, sharded_update="parameters")
    losses = training.run(2)
    alone = Training(replicator.create("single"), model, ADAM)

    np.testing.assert_allclose(alone.run(2), losses, rtol=0.02)
    gathers = moved_bytes.only_program(repl)._analysis.gathers
    assert len(gathers) > len(training.model.trainable_variables)


def test_replicas_that_share_memory_have_nothing_to_gather():
    """There is one copy anyway."""
    repl = replicator.create("in_graph", num_replicas=2)
    training = Training(repl, "deep", "adam", sharded_update="parameters")
    training.run(1)

    assert "replicas share one copy of every variable" in repl.explain()
    assert "gathers" not in repl.explain()


def test_fit_trains_and_predicts():
    """The optimizer is built by Keras, and what is traced afterwards follows."""
    results = []
    for level in (False, "parameters"):
        keras.utils.set_random_seed(3)
        repl = copies(2)
        x, y = np.eye(24, 12, dtype=np.float32), np.ones([24, 3], np.float32)
        with repl.scope():
            model = dense(16, 3)
            optimizer = repl.wrap_optimizer(ADAM(), sharded_update=level)
            model.compile(optimizer, "mse")
        losses = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
        results.append([*losses.history["loss"], *model.predict(x, verbose=0).ravel()])

    np.testing.assert_allclose(*results, rtol=1e-5)
