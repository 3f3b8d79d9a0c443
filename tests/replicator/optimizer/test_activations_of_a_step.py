"""What the backward pass keeps, in the table of what fits on a device."""

from __future__ import annotations

import re

import keras
import pytest
import tensorflow as tf

import replicator

ROWS, WIDTH, NUM_LAYERS = 32, 16, 4
LEAST_BYTES = 500_000_000


def trained(rows, width, num_layers, *, is_static=True, num_replicas=2):
    """A replicator with copies, and what trains dense layers on it for a step."""
    repl = replicator.create(
        "in_graph", num_replicas=num_replicas, variable_placement="mirrored"
    )
    with repl.context():
        layers = [keras.layers.Dense(width, "tanh") for _ in range(num_layers)]
        model = keras.Sequential([keras.Input((width,)), *layers])
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(0.01), sharded_update="gradients"
        )
        optimizer.build(model.trainable_variables)
    batch = tf.ones([rows, width])

    def step():
        # Rows that are chosen are not known before.
        rows_of = batch if is_static else tf.boolean_mask(batch, batch[:, 0] > 0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(rows_of))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    return repl, lambda: repl.run(step)


def activations(repl):
    """The column of the table, in bytes; None without one."""
    lines = repl.summary().split("by level of sharded_update")[1].splitlines()
    names = lines[1].split()
    if "activations" not in names:
        return None
    return int(lines[2].split()[names.index("activations")].replace(",", ""))


def test_each_layer_keeps_its_output():
    """The last too, for its own gradient; neither the batch nor weights."""
    repl, run = trained(ROWS, WIDTH, NUM_LAYERS)
    assert activations(repl) is None
    assert "without activations" in repl.summary()
    run()

    assert 4 * ROWS * WIDTH * NUM_LAYERS == activations(repl)


def test_a_fused_batch_norm_keeps_its_input_and_statistics():
    """What else its kernel writes for its gradient has no size in the graph."""
    channels = 8
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        kernel = tf.Variable(tf.ones([1, 1, 1, channels]))
    batch = tf.ones([ROWS, 2, 2, 1])

    def step():
        with tf.GradientTape() as tape:
            convolved = tf.nn.conv2d(batch, kernel, 1, "SAME")
            ones = tf.ones([channels])
            normal = tf.compat.v1.nn.fused_batch_norm(convolved, ones, ones)[0]
            loss = tf.reduce_sum(tf.math.tanh(normal))
        return tape.gradient(loss, kernel)

    repl.run(step)

    of_tanh = of_convolution = ROWS * 2 * 2 * channels
    mean = variance = channels
    expected = 4 * (of_tanh + of_convolution + mean + variance)
    assert expected == repl.counts()["activation_bytes"]


def test_rows_that_are_not_known_have_no_activations():
    """Nothing is left out of a sum: there is none."""
    repl, run = trained(ROWS, WIDTH, NUM_LAYERS, is_static=False)
    run()

    assert activations(repl) is None
    assert re.search("without activations and what is being sent", repl.summary())


@pytest.mark.full
def test_the_allocator_agrees():
    """Within three of eight layers: gradients, and what kernels need; full run only."""
    rows, width, num_layers = 131_072, 128, 8
    _, run = trained(rows, width, num_layers, num_replicas=1)
    run()
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    run()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    counted = 4 * rows * width * num_layers

    assert peak >= LEAST_BYTES
    assert abs(peak - counted) <= 2 * counted / num_layers + 4 * rows * width
