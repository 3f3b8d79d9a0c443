"""Models with replica-local state: batch norm and dropout."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import replicator


def _data(n, *, per_replica_batch_size=4, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(per_replica_batch_size, 6)).astype(np.float32)
        for _ in range(n)
    ]


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
