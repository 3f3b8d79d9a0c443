"""N replicas x b examples train like 1 replica x N*b examples, on every backend."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

NUM_STEPS = 12
GLOBAL_BATCH_SIZE = 8
# Sums over 8 examples in another order, twelve steps deep: a few float32 roundings.
RTOL_FLOAT32 = 3e-5

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
    "accumulated": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2
    ),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]),
        momentum=0.9,
    ),
}


class CrossReplicaNorm(keras.layers.Layer):
    """Batch normalisation over the global batch, by way of all_mean."""

    def call(self, x):
        """Normalises each feature over batch and replicas."""
        mean = tf.reduce_mean(x, axis=0)
        square = tf.reduce_mean(x * x, axis=0)
        if replicator.context.in_replica_context():
            mean, square = replicator.all_mean((mean, square))
        return (x - mean) / tf.sqrt(square - mean * mean + 1e-3)


def _dense():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


def _cross_replica_norm():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8),
            CrossReplicaNorm(),
            keras.layers.Dense(3),
        ]
    )


def _embedding():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(11, 5),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def _convolution():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


MODELS = {
    "dense": (_dense, lambda rng: rng.normal(size=(32, 6)).astype(np.float32)),
    "cross_replica_norm": (
        _cross_replica_norm,
        lambda rng: rng.normal(size=(32, 6)).astype(np.float32),
    ),
    "embedding": (
        _embedding,
        lambda rng: rng.integers(0, 11, size=(32, 4)).astype(np.int32),
    ),
    "convolution": (
        _convolution,
        lambda rng: rng.normal(size=(32, 6, 6, 1)).astype(np.float32),
    ),
}


def _train(repl, model_name, optimizer_name, dataset_fn, *, num_steps_per_run=1):
    """Trains from fixed weights; returns losses and final weights."""
    keras.utils.set_random_seed(7)
    build, make_features = MODELS[model_name]
    rng = np.random.default_rng(3)
    features = make_features(rng)
    labels = rng.normal(size=(32, 3)).astype(np.float32)
    with repl.context():
        model = build()
        optimizer = repl.wrap_optimizer(OPTIMIZERS[optimizer_name]())
    inputs = repl.make_input_iterator(
        dataset_fn(features, labels, global_batch_size=GLOBAL_BATCH_SIZE)
    )

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    losses = []
    for _ in range(NUM_STEPS // num_steps_per_run):
        out = repl.run(step, inputs, num_steps=num_steps_per_run)
        losses.append(float(repl.reduce("mean", out)))
    repl.assert_in_sync()
    return losses, [w.numpy() for w in model.weights], optimizer


_REFERENCES = {}


def _reference(model_name, optimizer_name, dataset_fn):
    """Trains the single device once per combination."""
    key = (model_name, optimizer_name)
    if key not in _REFERENCES:
        _REFERENCES[key] = _train(replicator.create("single"), *key, dataset_fn)
    return _REFERENCES[key]


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_optimizers_train_alike(repl, dataset_fn, optimizer_name):
    """Losses and weights follow the single device for every kind of optimizer."""
    if optimizer_name == "accumulated" and isinstance(
        repl, replicator.StrategyReplicator
    ):
        pytest.skip("a stock strategy cannot reduce in the branch that accumulates")
    expected_losses, expected_weights, reference = _reference(
        "dense", optimizer_name, dataset_fn
    )

    losses, weights, optimizer = _train(repl, "dense", optimizer_name, dataset_fn)

    np.testing.assert_allclose(expected_losses, losses, rtol=RTOL_FLOAT32)
    for expected, weight in zip(expected_weights, weights, strict=True):
        np.testing.assert_allclose(expected, weight, rtol=1e-3, atol=1e-5)
    # Keras counts updates: half as many where two gradients make one.
    num_updates = NUM_STEPS // 2 if optimizer_name == "accumulated" else NUM_STEPS
    assert num_updates == int(reference.iterations.numpy())
    assert num_updates == int(optimizer.iterations.numpy())


@pytest.mark.parametrize("model_name", [m for m in MODELS if m != "dense"])
def test_models_train_alike(repl, dataset_fn, model_name):
    """Losses follow the single device, cross-replica normalisation included."""
    expected_losses, _, _ = _reference(model_name, "momentum", dataset_fn)

    losses, _, _ = _train(repl, model_name, "momentum", dataset_fn)

    np.testing.assert_allclose(expected_losses, losses, rtol=1e-4)


def test_steps_in_one_dispatch_equal_single_steps(repl, dataset_fn):
    """run(num_steps=4) gives the losses and weights of every fourth single step."""
    expected_losses, expected_weights, _ = _train(repl, "dense", "momentum", dataset_fn)

    losses, weights, _ = _train(
        repl, "dense", "momentum", dataset_fn, num_steps_per_run=4
    )

    np.testing.assert_allclose(expected_losses[3::4], losses, rtol=1e-6)
    for expected, weight in zip(expected_weights, weights, strict=True):
        np.testing.assert_allclose(expected, weight, rtol=1e-5, atol=1e-7)


def test_local_batch_norm_legitimately_differs(in_graph, dataset_fn):
    """Normalising each replica's share alone is another computation, and shows."""

    def run(repl):
        keras.utils.set_random_seed(7)
        with repl.context():
            model = keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(4),
                    keras.layers.BatchNormalization(),
                ]
            )
        data = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
        inputs = repl.make_input_iterator(dataset_fn(data, global_batch_size=8))

        def step(x):
            return tf.reduce_mean(model(x, training=True)[:, 0] ** 3)

        return float(repl.reduce("mean", repl.run(step, inputs)))

    alone, split = run(replicator.create("single")), run(in_graph)

    assert abs(alone - split) > 1e-3
