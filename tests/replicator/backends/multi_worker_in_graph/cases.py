"""What the client of a test cluster computes; the test process repeats it alone."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_STEPS = 12
GLOBAL_BATCH_SIZE = 8
NUM_EXAMPLES = 32

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}


def _dense():
    return [keras.Input((6,)), keras.layers.Dense(300, "tanh"), keras.layers.Dense(3)]


def _embedding():
    return [
        keras.Input((4,), dtype="int32"),
        keras.layers.Embedding(11, 5),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


MODELS = {
    "dense": (_dense, lambda rng: rng.normal(size=(NUM_EXAMPLES, 6))),
    "embedding": (_embedding, lambda rng: rng.integers(0, 11, (NUM_EXAMPLES, 4))),
}


class Training:
    """A small model in training on a replicator."""

    def __init__(
        self, repl, model="dense", optimizer="sgd", mode="PER_WORKER", **options
    ):
        """Makes model, optimizer and inputs, always the same."""
        keras.utils.set_random_seed(7)
        layers, make_features = MODELS[model]
        rng = np.random.default_rng(3)
        features = make_features(rng)
        features = features.astype("f" if features.dtype.kind == "f" else "i")
        labels = rng.normal(size=(NUM_EXAMPLES, 3)).astype("f")
        self.repl = repl
        with repl.context():
            self.model = keras.Sequential(layers())
            self.optimizer = repl.wrap_optimizer(OPTIMIZERS[optimizer](), **options)

        def input_fn(ctx):
            share = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
            # Batches of one replica, dealt to pipelines so that a step is fed one
            # global batch, whatever the number of replicas and pipelines.
            per_pipeline = repl.num_replicas // ctx.num_input_pipelines
            batches = tf.data.Dataset.from_tensor_slices((features, labels))
            return (
                batches.repeat()
                .batch(share)
                .batch(per_pipeline)
                .shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
                .unbatch()
            )

        self.inputs = repl.make_input_iterator(
            input_fn, replicator.InputReplicationMode[mode]
        )

    def step(self, batch):
        """One step on one device."""
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    def run(self, num_steps=NUM_STEPS, num_steps_per_run=1):
        """Trains; returns the mean loss of each run."""
        losses = []
        for _ in range(num_steps // num_steps_per_run):
            out = self.repl.run(self.step, self.inputs, num_steps=num_steps_per_run)
            losses.append(float(self.repl.reduce("mean", out)))
        return losses

    def weights(self):
        """The weights as numbers."""
        return [w.numpy().tolist() for w in self.model.weights]


def trajectory(
    repl, model, optimizer, mode="PER_WORKER", num_steps_per_run=1, **options
):
    """Losses and final weights of a training."""
    training = Training(repl, model, optimizer, mode, **options)
    losses = training.run(num_steps_per_run=num_steps_per_run)
    repl.assert_in_sync()
    return {"losses": losses, "weights": training.weights()}
