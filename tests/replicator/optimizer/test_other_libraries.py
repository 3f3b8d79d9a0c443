"""Optimizers of other libraries, wrapped: one update is that of one device.

Those of libraries that are not installed are skipped by name; ``make test-communities``
has them all.
"""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import OptimizerOptionError

NUM_STEPS = 3
TOLERANCE = 1e-6  # relative: sums of float32 in another order
X = np.random.RandomState(0).randn(8, 3).astype(np.float32)


def _tf_keras(name, **options):
    tf_keras = pytest.importorskip("tf_keras")
    module = tf_keras.optimizers
    for part in name.split("."):
        module = getattr(module, part)
    return module(0.05, **options)


def _sonnet(name):
    return getattr(pytest.importorskip("sonnet").optimizers, name)(0.05)


OPTIMIZERS = {
    "tf.compat.v1 Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.05),
    "tf_keras Adam": lambda: _tf_keras("Adam"),
    "tf_keras SGD that clips": lambda: _tf_keras("SGD", global_clipnorm=0.5),
    "tf_keras legacy RMSprop": lambda: _tf_keras("legacy.RMSprop"),
    "Sonnet Adam": lambda: _sonnet("Adam"),
    "Sonnet RMSProp": lambda: _sonnet("RMSProp"),
}


def _update(optimizer, grads, weights):
    if hasattr(optimizer, "apply_gradients"):
        optimizer.apply_gradients(zip(grads, weights, strict=True))
    else:
        optimizer.apply(grads, weights)


def _trained(repl, make, **options):
    weights = [tf.Variable([0.5, -1.0, 2.0]), tf.Variable(0.25)]
    optimizer = make()
    if repl is not None:
        optimizer = repl.wrap_optimizer(optimizer, **options)

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.linalg.matvec(x, weights[0]) + weights[1]
            loss = tf.reduce_mean((y - 3.0) ** 2)
        _update(optimizer, tape.gradient(loss, weights), weights)

    for _ in range(NUM_STEPS):
        if repl is None:
            step(tf.constant(X))
        else:
            parts = np.split(X, repl.num_replicas)
            repl.run(step, replicator.PerReplica([tf.constant(p) for p in parts]))
    return np.concatenate([np.ravel(weight.numpy()) for weight in weights])


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_update_of_the_average_is_that_of_one_device(make, in_graph):
    expected = _trained(None, make)

    np.testing.assert_allclose(_trained(in_graph, make), expected, rtol=TOLERANCE)


def test_they_clip_the_average_and_send_it_in_16_bits(in_graph):
    make = OPTIMIZERS["tf.compat.v1 Adam"]
    options = {"global_clipnorm": 1e3, "compression": "bfloat16"}

    got = _trained(in_graph, make, **options)
    clipped = _trained(
        in_graph,
        lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
        global_clipnorm=0.01,
    )

    np.testing.assert_allclose(got, _trained(None, make), rtol=2e-2)
    start = np.array([0.5, -1.0, 2.0, 0.25])
    assert NUM_STEPS * 0.01 >= np.linalg.norm(clipped - start) - 1e-6


def test_minimize_averages_as_well(in_graph):
    weight = tf.Variable(1.0)
    optimizer = in_graph.wrap_optimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0)
    )
    values = replicator.PerReplica([tf.constant(1.0), tf.constant(3.0)])

    def step(x):
        optimizer.minimize(lambda: x * weight, [weight])

    in_graph.run(step, values)

    assert 1.0 - 2.0 == float(weight)
    with pytest.raises(TypeError, match="without the tape"):
        optimizer.minimize(tf.constant(1.0), [weight])


@pytest.mark.parametrize(
    "options",
    [{"accumulation_steps": 2}, {"loss_scale": 8.0}, {"sharded_update": True}],
)
def test_options_of_keras_3_are_refused(in_graph, options):
    optimizer = tf.compat.v1.train.AdamOptimizer(0.05)

    with pytest.raises(OptimizerOptionError, match="works with optimizers of Keras 3"):
        in_graph.wrap_optimizer(optimizer, **options)
    wrapped = in_graph.wrap_optimizer(optimizer)
    assert isinstance(wrapped, tf.compat.v1.train.AdamOptimizer)
    assert "<AveragingOptimizer of AdamOptimizer>" == repr(wrapped)
    with pytest.raises(TypeError, match="already wrapped"):
        in_graph.wrap_optimizer(wrapped)
