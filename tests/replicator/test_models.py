"""Kinds of models: mixed precision, functional Keras, tf.Module, two step functions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator


def _data(n, *, per_replica_batch_size=4, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(per_replica_batch_size, 6)).astype(np.float32)
        for _ in range(n)
    ]


def _floats(values):
    return [float(v) for v in values]


def _train(repl, model, xs, *, num_steps=6, optimizer=None):
    with repl.context():
        optimizer = repl.wrap_optimizer(optimizer or keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - 1.0))
        weights = list(model.trainable_variables)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    values = replicator.PerReplica([tf.constant(x) for x in xs])
    return [repl.reduce("mean", repl.run(step, values)) for _ in range(num_steps)]


class _Perceptron(tf.Module):
    """Two matrices in a plain tf.Module."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(1)
        self.first = tf.Variable(rng.normal(size=(6, 5)).astype(np.float32))
        self.second = tf.Variable(rng.normal(size=(5, 2)).astype(np.float32))

    def __call__(self, x):
        return tf.matmul(tf.tanh(tf.matmul(x, self.first)), self.second)


def _mixed():
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", dtype=policy),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )


# bfloat16 keeps 8 bits: sums in another order differ by parts in a thousand.
KINDS = {"module": (_Perceptron, 3e-5), "mixed_bfloat16": (_mixed, 2e-2)}


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_train_it_like_one_device_on_the_joined_batch(repl, kind):
    """Losses of R shares average to the loss of the whole batch."""
    make, rtol = KINDS[kind]
    xs = _data(repl.num_replicas)
    single = replicator.create("single")
    losses = []
    for one, batches in ((single, [np.concatenate(xs)]), (repl, xs)):
        keras.utils.set_random_seed(3)
        with one.context():
            model = make()
        losses.append(_floats(_train(one, model, batches)))

    np.testing.assert_allclose(*losses, rtol=rtol)
    assert losses[1][-1] < losses[1][0]


def test_functional_models_with_dropout_and_batch_norm_train(in_graph):
    """Weights stay in sync, statistics are per replica, masks differ."""
    with in_graph.context():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(32)(inputs)
        normed = keras.layers.BatchNormalization(momentum=0.5)(hidden)
        dropped = keras.layers.Dropout(0.5, seed=3)(normed)
        model = keras.Model(inputs, [keras.layers.Dense(2)(dropped), dropped])
        optimizer = in_graph.wrap_optimizer(keras.optimizers.Adam(0.01))
    norm = model.layers[2]

    def step(x):
        with tf.GradientTape() as tape:
            y, masked = model(x, training=True)
            loss = tf.reduce_mean(tf.square(y - 1.0))
        weights = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss, tf.equal(masked, 0.0)

    def statistics():
        return tf.identity(norm.moving_mean.value)

    xs = replicator.PerReplica(
        [tf.constant(x + r) for r, x in enumerate(_data(2, per_replica_batch_size=16))]
    )
    losses, masks = [], []
    for _ in range(15):
        loss, mask = in_graph.run(step, xs)
        losses.append(float(in_graph.reduce("mean", loss)))
        masks += [value.numpy().tobytes() for value in mask]
    copies = [value.numpy() for value in in_graph.run(statistics)]

    in_graph.assert_in_sync()
    assert losses[-1] < losses[0]
    assert 30 == len(set(masks))
    assert not np.allclose(copies[0], copies[1])
    np.testing.assert_allclose(
        np.mean(copies, axis=0), norm.moving_mean.numpy(), rtol=1e-6
    )


def _adversaries(repl, num_rounds):
    """Two steps that share both players, as in a GAN."""
    with repl.context():
        generator = tf.Variable([0.5, -0.5], name="generator")
        critic = tf.Variable([1.0, 2.0], name="critic")
        of_generator = repl.wrap_optimizer(keras.optimizers.Adam(0.05))
        of_critic = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.5))

    def train_critic(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x - generator) @ critic[:, None]) + tf.reduce_sum(
                critic**2
            )
        of_critic.apply_gradients([(tape.gradient(loss, critic), critic)])
        return loss

    def train_generator(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square((x + generator) @ critic[:, None]))
        of_generator.apply_gradients([(tape.gradient(loss, generator), generator)])
        return loss

    xs = [x[:, :2] for x in _data(4 // repl.num_replicas * repl.num_replicas)]
    share = len(xs) // repl.num_replicas
    values = replicator.PerReplica(
        [
            tf.constant(np.concatenate(xs[r * share : (r + 1) * share]))
            for r in range(repl.num_replicas)
        ]
    )
    losses = []
    for _ in range(num_rounds):
        losses += [
            float(repl.reduce("mean", repl.run(step, values)))
            for step in (train_critic, train_critic, train_generator)
        ]
    repl.assert_in_sync()
    return losses


_ADVERSARIES = {}


def test_two_steps_share_variables(repl):
    """Each sees what the other wrote, on every replica, and follows one device."""
    if not _ADVERSARIES:
        _ADVERSARIES["single"] = _adversaries(replicator.create("single"), 4)

    losses = _adversaries(repl, 4)

    np.testing.assert_allclose(_ADVERSARIES["single"], losses, rtol=1e-4, atol=1e-5)


def test_gradients_pass_a_collective_of_mixed_types(repl):
    """Integers ride along; the float's gradient is 2 R x * (R * 3) * R."""
    n = repl.num_replicas

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = replicator.all_sum({"x": x, "count": tf.constant(3)})
            loss = total["x"] ** 2 * tf.cast(total["count"], tf.float32)
        return tape.gradient(loss, x)

    out = repl.run(step, replicator.PerReplica([tf.constant(2.0)] * n))

    assert [2 * (2.0 * n) * (3 * n) * n] * n == _floats(out)
