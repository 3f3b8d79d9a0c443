"""Values in 16 bits, values at the limits of their types, and their shapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

NUM_ELEMENTS = 100_000
# Twice half the distance between the smallest numbers of float16.
TINY = 2.0**-24
# The largest relative error of rounding to a type.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def _operands(num_replicas):
    rng = np.random.default_rng(3)
    spread = 2.0 ** rng.integers(-6, 7, size=(num_replicas, NUM_ELEMENTS))
    signs = rng.normal(size=(num_replicas, NUM_ELEMENTS))
    return (spread * signs).astype(np.float32)


def _mean(repl, xs, name):
    def step(x):
        return replicator.all_reduce(x, "mean", compression=name)

    values = replicator.PerReplica([tf.constant(x) for x in xs])
    return repl.run(step, values), repl.explain()


@pytest.mark.parametrize("name", UNIT_ROUNDOFF)
def test_between_memories_errors_are_bounded_unbiased_and_the_same(separate, name):
    """Element by element, against float64; and it is an error, so bits were dropped."""
    xs = _operands(4)

    out, plan = _mean(separate(4), xs, name)

    exact = xs.astype(np.float64).mean(axis=0)
    error = out[0].numpy() - exact
    u = UNIT_ROUNDOFF[name]
    bound = u * np.abs(xs).mean(axis=0) * (1 + u) + u * np.abs(exact)
    float32_part = 1e-6 * np.abs(xs).sum(axis=0) + TINY
    assert tf.float32 == out[0].dtype
    assert np.all(np.abs(error) <= bound + float32_part)
    assert np.abs(error).max() > u / 4 * np.abs(exact).max()
    scaled = error / np.abs(xs).mean(axis=0)
    assert abs(scaled.mean()) < 4 * scaled.std() / np.sqrt(NUM_ELEMENTS)
    assert 1 == len({value.numpy().tobytes() for value in out})
    assert f"1 tensors, {2 * NUM_ELEMENTS} bytes per replica, algorithm add_n" in plan
    assert f"{name} between memories" in plan


def test_in_one_memory_nothing_is_rounded(in_graph):
    xs = _operands(2)

    out, plan = _mean(in_graph, xs, "bfloat16")

    np.testing.assert_allclose(xs.mean(axis=0), out[0], rtol=1e-6, atol=1e-7)
    assert "in one memory: nothing is sent, so nothing is compressed" in plan


def test_gradients_and_integers_keep_their_width(separate):
    x = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    third = np.float32(1 / 3)

    def step(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            total, big = replicator.all_reduce(
                [value, tf.constant(16_777_217)], compression="bfloat16"
            )
            loss = total * third
        return tape.gradient(loss, value), big

    grad, big = separate(2).run(step, x)

    np.testing.assert_allclose(2 * third, grad[0], rtol=1e-7)
    assert 33_554_434 == int(big[1])


def test_sparse_slices_travel_in_16_bits(separate):
    values = [np.full((2, 3), 1.001, np.float32)] * 2

    def step(rows):
        joined = replicator.all_reduce(
            tf.IndexedSlices(*rows), "sum", compression="bfloat16"
        )
        return joined.values, joined.indices

    ids = replicator.PerReplica([np.array([70_001, 3])] * 2)
    joined, indices = separate(2).run(step, (replicator.PerReplica(values), ids))

    assert [70_001, 3] * 2 == indices[0].numpy().tolist()
    np.testing.assert_array_equal(np.ones((4, 3), np.float32), joined[0])


LARGEST = 65504.0  # of float16


MEANS = {
    "all_mean": replicator.all_mean,
    "compressed": lambda x: replicator.all_reduce(x, "mean", compression="bfloat16"),
    "reduce_scatter": lambda x: replicator.all_gather(
        replicator.reduce_scatter(x, "mean")
    )[:, 0],
    "map_reduce": lambda x: replicator.map_reduce(lambda _: x, [0, 1, 2, 3], "mean"),
    "run_and_reduce": tf.identity,
}


def test_a_mean_of_float16_does_not_overflow_where_the_sum_would(in_graph):
    values = np.array([[LARGEST, 2.0**-24], [LARGEST, 3 * 2.0**-24]])
    expected = tf.float16, values.mean(axis=0).astype(np.float16).tolist()

    def step(x):
        return {name: mean(tf.cast(x, tf.float16)) for name, mean in MEANS.items()}

    out = in_graph.run(step, replicator.PerReplica(list(tf.constant(values))))
    found = {
        name: (mean.dtype, mean.numpy().tolist())
        for name, mean in in_graph.reduce("mean", out).items()
    }

    assert dict.fromkeys(MEANS, expected) == found


def test_means_of_float16_are_rounded_once(separate):
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


@pytest.mark.covering(strength=1)
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
