"""Training that workers do, and the test's own process for comparison."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import replicator

GLOBAL_BATCH_SIZE = 8
NUM_STEPS = 8
ACCUMULATED = {"accumulation_steps": 2, "loss_scale": "dynamic"}

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def convolution():
    """Convolutions with cross-replica batch norm between them."""
    return [
        keras.Input((12,)),
        keras.layers.Reshape((2, 2, 3)),
        keras.layers.Conv2D(4, 2, padding="same", use_bias=False),
        replicator.CrossReplicaBatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Conv2D(4, 2, padding="same"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


def embedding():
    """An embedding, whose gradients are tf.IndexedSlices."""
    return [
        keras.Input((12,)),
        keras.layers.Lambda(lambda x: tf.cast(tf.abs(x * 5), tf.int32) % 11),
        keras.layers.Embedding(11, 5),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


MODELS = {"convolution": convolution, "embedding": embedding}


def data():
    """Inputs and targets of a regression, the same in every process."""
    rng = np.random.default_rng(7)
    return (
        rng.normal(size=(64, 12)).astype(np.float32),
        rng.normal(size=(64, 3)).astype(np.float32),
    )


def train(repl, model_name, optimizer_name, *, num_steps=1, **options):
    """Trains a net; returns the losses of the job and the final weights."""
    # Workers other than 0 start from other weights, and must not notice.
    keras.utils.set_random_seed(1 + repl.worker_id)
    with repl.context():
        model = keras.Sequential(MODELS[model_name]())
        optimizer = repl.wrap_optimizer(OPTIMIZERS[optimizer_name](), **options)

    def input_fn(ctx):
        share = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        x, y = data()
        return (
            tf.data.Dataset.from_tensor_slices((x, y))
            .batch(GLOBAL_BATCH_SIZE, drop_remainder=True)
            .map(
                lambda a, b: tuple(
                    tf.reshape(v, [ctx.num_input_pipelines, -1, v.shape[-1]])[
                        ctx.input_pipeline_id
                    ]
                    for v in (a, b)
                )
            )
            .unbatch()
            .batch(share, drop_remainder=True)
            .repeat()
        )

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        weights = model.trainable_variables
        grads = tape.gradient(scaled, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    inputs = repl.make_input_iterator(input_fn)
    losses = [
        float(repl.reduce("mean", repl.run(step, inputs, num_steps=num_steps)))
        for _ in range(NUM_STEPS // num_steps)
    ]
    repl.assert_in_sync()
    return {"losses": losses, "weights": [w.numpy().tolist() for w in model.weights]}


def train_split(repl):
    """Trains layers on two logical devices; returns the final weights."""
    keras.utils.set_random_seed(1 + repl.worker_id)
    with repl.context():
        layers = []
        for place, (inputs, outputs) in enumerate([(12, 5), (5, 3)]):
            with replicator.logical_device(place):
                layers.append(keras.layers.Dense(outputs, activation="tanh"))
                layers[-1].build([None, inputs])
        weights = [w for layer in layers for w in layer.trainable_variables]
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.05))

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            for place, layer in enumerate(layers):
                with replicator.logical_device(place):
                    x = layer(x)
            loss = tf.reduce_mean((x - y) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    x, y = data()
    for start in range(0, 64, GLOBAL_BATCH_SIZE):
        parts = (
            np.split(a[start : start + GLOBAL_BATCH_SIZE], repl.num_replicas)
            for a in (x, y)
        )
        repl.run(step, tuple(share(repl, part) for part in parts))
    repl.assert_in_sync()
    return {
        "weights": [w.numpy().tolist() for w in weights],
        "places": [w.value.device.rpartition(":")[2] for w in weights],
    }


def share(repl, values):
    """The part of one value per replica of the job that is for this worker."""
    first = repl.first_replica_id
    mine = values[first : first + repl.num_local_replicas]
    return replicator.PerReplica([tf.constant(value) for value in mine])
