"""Values at the limits of their types, and shapes that differ between replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

LARGEST = 65504.0  # of float16


def _step(call):
    return lambda x: call(tf.cast(x, tf.float16))


MEANS = {
    "all_mean": _step(replicator.all_mean),
    "compressed": _step(
        lambda x: replicator.all_reduce(x, "mean", compression="bfloat16")
    ),
    "reduce_scatter": _step(
        lambda x: replicator.all_gather(replicator.reduce_scatter(x, "mean"))[:, 0]
    ),
    "map_reduce": _step(
        lambda x: replicator.map_reduce(lambda _: x, [0, 1, 2, 3], "mean")
    ),
    "run_and_reduce": _step(tf.identity),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_float16_does_not_overflow_where_the_sum_would(in_graph, name):
    """Nor does it lose the smallest numbers: that of float64, rounded once."""
    values = np.array([[LARGEST, 2.0**-24], [LARGEST, 3 * 2.0**-24]])
    x = replicator.PerReplica(list(tf.constant(values, tf.float32)))

    mean = in_graph.reduce("mean", in_graph.run(MEANS[name], x))

    expected = values.mean(axis=0).astype(np.float16)
    assert (tf.float16, expected.tolist()) == (mean.dtype, mean.numpy().tolist())


def test_means_of_float16_are_rounded_once(separate):
    """By four replicas of separate memories: the float16 nearest to that of float64."""
    values = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float16)
    x = replicator.PerReplica(list(tf.constant(values)))

    out = separate(4).run(replicator.all_mean, x)

    expected = values.astype(np.float64).mean(axis=0).astype(np.float16)
    for mean in out:
        np.testing.assert_array_equal(expected, mean)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_of_float16_are_averaged_before_they_overflow(in_graph, momentum):
    """The kernels of SGD take sums where these are the same."""
    with in_graph.context():
        weight = tf.Variable([0.0], dtype=tf.float16)
        optimizer = in_graph.wrap_optimizer(keras.optimizers.SGD(0.5, momentum))

    def step(grad):
        optimizer.apply_gradients([(grad, weight)])

    grads = [tf.constant([LARGEST], tf.float16)] * 2
    in_graph.run(step, replicator.PerReplica(grads))

    assert optimizer.uses_fused_update
    assert [-LARGEST / 2] == weight.numpy().tolist()


def test_float64_is_divided_in_float64():
    """By three replicas: a third in float32 is off in the eighth digit."""
    repl = replicator.create("in_graph", num_replicas=3)
    with repl.context():
        weight = tf.Variable([0.0], dtype=tf.float64)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
    data = tf.data.Dataset.range(5).map(lambda x: tf.cast(x, tf.float64))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(data, ctx, 6)
    )

    def step(x):
        optimizer.apply_gradients([(tf.ones([1], tf.float64), weight)])
        return replicator.mean_over_examples(x / 7)

    out = repl.run(step, inputs)

    assert [-1.0] == weight.numpy().tolist()
    assert 2 / 7 == pytest.approx(float(repl.reduce("mean", out)), rel=1e-15)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_shapes_that_differ_are_an_error_and_not_broadcast(in_graph, collective, op):
    """Of a last batch with one example less on one replica; both shapes are named."""
    inputs = in_graph.make_input_iterator(
        lambda _: tf.data.Dataset.range(7, output_type=tf.float32).batch(2)
    )

    def step(x):
        return getattr(replicator, collective)(tf.tile(x, [2]), op)

    in_graph.run(step, inputs)

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"{collective}\({op}\) got tensors of different shapes on different "
        r"replicas; pad them.*by replica\] \[\[4\] \[2\]\]",
    ):
        in_graph.run(step, inputs)
