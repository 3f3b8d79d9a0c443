"""Cross-replica batch normalization against Keras on the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

SHAPE = (8, 3, 3, 5)


def _inputs(offset=0.5):
    rng = np.random.default_rng(4)
    x = rng.normal(size=SHAPE) * np.arange(1, 6) + offset
    return x.astype(np.float32), rng.normal(size=SHAPE).astype(np.float32)


def _layer(kind, **options):
    layer = kind(momentum=0.8, **options)
    layer.build(SHAPE)
    layer.gamma.assign(tf.linspace(0.5, 1.5, 5))
    layer.beta.assign(tf.linspace(-1.0, 1.0, 5))
    return layer


def _pass(layer, x, weights):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layer(x, training=True)
        wide = tf.cast(out, tf.float32)
        loss = tf.reduce_sum(weights * wide**2)
    sources = [x, layer.gamma.value, layer.beta.value]
    return [wide, *tape.gradient(loss, sources)]


def _check_like_keras(repl, dtype, tolerance, form, num_steps=2, offset=0.5):
    n = repl.num_replicas
    x, weights = _inputs(offset)
    whole = _layer(keras.layers.BatchNormalization, dtype=dtype)
    for _ in range(num_steps):
        expected = _pass(whole, tf.constant(x), tf.constant(weights))
    with repl.context():
        layer = _layer(
            replicator.CrossReplicaBatchNormalization, dtype=dtype, variance_form=form
        )

    def step(batch):
        out, dx, *dweights = _pass(layer, *batch)
        return [out, dx, *replicator.all_sum(dweights)]

    batch = tuple(
        replicator.PerReplica([tf.constant(part) for part in np.split(array, n)])
        for array in (x, weights)
    )
    for _ in range(num_steps):
        got = repl.run(step, batch)

    joined = [np.concatenate([np.asarray(v) for v in leaf]) for leaf in got[:2]]
    values = [*joined, *(np.asarray(leaf[n - 1]) for leaf in got[2:])]
    values += [np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)]
    wants = [*expected, whole.moving_mean, whole.moving_variance]
    for want, value in zip(wants, values, strict=True):
        scale = np.abs(np.asarray(want)).max()
        np.testing.assert_allclose(want, value, atol=tolerance * scale, rtol=tolerance)
    repl.assert_in_sync()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("form", ["shifted", "two_pass"])
def test_replicas_normalize_as_one_with_the_whole_batch(repl_once, form):
    """Outputs, gradients of inputs and weights, and moving statistics, in float32."""
    _check_like_keras(repl_once, "float32", 2e-4, form)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("form", ["shifted", "two_pass"])
def test_mixed_bfloat16_keeps_statistics_in_float32(in_graph, form):
    """Outputs have the compute type; statistics are those of float32."""
    _check_like_keras(in_graph, "mixed_bfloat16", 2e-2, form)


def test_two_passes_lose_nothing_far_from_zero(in_graph):
    """With mean 1000 and variances from 1, E[x^2] - E[x]^2 would be off by percents."""
    _check_like_keras(in_graph, "float32", 2e-3, "two_pass", offset=1000.0)


def test_inference_uses_the_moving_statistics(in_graph):
    """And does not communicate: it is Keras' layer."""
    x, _ = _inputs()
    layer = _layer(replicator.CrossReplicaBatchNormalization)
    batch = replicator.PerReplica([tf.constant(part) for part in np.split(x, 2)])

    def step(part):
        return layer(part, training=False)

    out = in_graph.run(step, batch)

    expected = _layer(keras.layers.BatchNormalization)(x, training=False)
    np.testing.assert_allclose(expected, np.concatenate(out.values), rtol=1e-5)
    assert "no collectives" in in_graph.explain()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"variance_form": "naive"},
            r"variance_form 'naive' is unknown; use 'shifted'",
        ),
        (
            {"variance_form": tf.zeros([2])},
            r"variance_form a '.*' of float32 and shape \(2,\) is unknown; use 'shif",
        ),
        ({"synchronized": True}, r"synchronized=True makes Keras communicate too"),
        ({"renorm": True}, r"renorm=True corrects the statistics of small batches"),
    ],
)
def test_an_option_without_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        replicator.CrossReplicaBatchNormalization(**options)


def test_the_layer_can_be_made_again_from_its_configuration():
    layer = replicator.CrossReplicaBatchNormalization(variance_form="two_pass")

    again = type(layer).from_config(layer.get_config())

    assert "two_pass" == again.variance_form
