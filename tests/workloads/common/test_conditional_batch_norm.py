"""Class-conditional batch norm against NumPy, local and across replicas."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from workloads.common.conditional_batch_norm import (
    EPSILON,
    ConditionalBatchNormalization,
)

SHAPE = (4, 3, 3, 2)
LABELS = np.array([2, 0, 1, 2], np.int32)
TOLERANCE_FLOAT32 = 2e-4  # variances of 36 values, and their gradients


def examples():
    """Images whose two halves have other statistics."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=SHAPE) * np.array([1.0, 3.0])
    return (x + np.array([0, 1, 4, 5])[:, None, None, None]).astype(np.float32)


def make_layer(statistics):
    """A layer with another scale and offset per class."""
    layer = ConditionalBatchNormalization(3, 2, statistics=statistics)
    layer.gamma.assign([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    layer.beta.assign([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    return layer


def numpys(layer, x, labels):
    """The formula, over all of ``x``."""
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    gamma, beta = layer.gamma.numpy()[labels], layer.beta.numpy()[labels]
    normalized = (x - mean) / np.sqrt(variance + EPSILON)
    return normalized * gamma[:, None, None] + beta[:, None, None]


def run(repl, statistics):
    """Outputs of all examples, and the summed gradient of gamma."""
    with repl.context():
        layer = make_layer(statistics)

    def step(batch):
        with tf.GradientTape() as tape:
            outputs = layer(*batch, training=True)
            loss = tf.reduce_sum(outputs**3)
        gradient = tape.gradient(loss, [layer.gamma.value])[0]
        return outputs, replicator.all_sum(tf.convert_to_tensor(gradient))

    batch = tuple(
        replicator.PerReplica([tf.constant(p) for p in np.split(a, repl.num_replicas)])
        for a in (examples(), LABELS)
    )
    outputs, gradient = repl.run(step, batch)
    joined = np.concatenate([np.asarray(part) for part in outputs])
    return layer, [joined, np.asarray(gradient[0])]


def test_one_replica_is_the_formula(one_replica):
    """Each example has the scale and offset of its class."""
    layer, (outputs, _) = run(one_replica, "local")

    expected = numpys(layer, examples(), LABELS)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_outside_training_the_moving_statistics_normalize():
    """Zero mean and unit variance before the first step."""
    layer = make_layer("local")
    x = examples()

    outputs = layer(tf.constant(x), tf.constant(LABELS))

    gamma, beta = layer.gamma.numpy()[LABELS], layer.beta.numpy()[LABELS]
    expected = x / np.sqrt(1 + EPSILON) * gamma[:, None, None] + beta[:, None, None]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_across_replicas_it_is_one_batch(one_replica, two_replicas):
    """Outputs and gradients of two replicas are those of one with all examples."""
    _, expected = run(one_replica, "cross_replica")
    _, found = run(two_replicas, "cross_replica")

    for want, have in zip(expected, found, strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(have, want, rtol=0, atol=TOLERANCE_FLOAT32 * scale)


def test_locally_each_replica_normalizes_its_own(two_replicas):
    """Two halves, each by its own statistics: another result than the whole's."""
    layer, (outputs, _) = run(two_replicas, "local")

    x = examples()
    halves = [numpys(layer, x[i : i + 2], LABELS[i : i + 2]) for i in (0, 2)]
    np.testing.assert_allclose(outputs, np.concatenate(halves), rtol=1e-4, atol=1e-3)
    assert np.abs(outputs - numpys(layer, x, LABELS)).max() > 0.5


def test_wrong_input_is_refused():
    """Unknown statistics, wrong ranks, and labels that are no classes."""
    layer = make_layer("local")
    with pytest.raises(ValueError, match="'global' are unknown: use 'local'"):
        make_layer("global")
    with pytest.raises(ValueError, match=r"but got \(4, 2\) and \(4,\)"):
        layer(tf.zeros([4, 2]), tf.zeros([4], tf.int32))
    with pytest.raises(ValueError, match="integer labels, but got 'float32'"):
        layer(tf.zeros(SHAPE), tf.zeros([4]))
