"""Cases of one worker and one server, run by the chief of a test cluster."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import replicator
from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

CASES = {}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, clipnorm=1.0),
    "adamw": lambda: keras.optimizers.AdamW(0.01, use_ema=True),
}


def train(repl, make_optimizer, *, is_sparse=False):
    """Ten steps of a small net with batch norm, dropout and maybe an embedding."""
    keras.utils.set_random_seed(5)
    with repl.context():
        layers = [
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2, seed=1),
            keras.layers.Dense(1),
        ]
        if is_sparse:
            layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), *layers]
        model = keras.Sequential(layers)
        model.build([None, 6])
        optimizer = repl.wrap_optimizer(make_optimizer())
    data = np.random.default_rng(0)
    x = data.integers(0, 20, [40, 6]).astype("int32" if is_sparse else "float32")
    y = data.normal(size=[40, 1]).astype("float32")

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(4)
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(size)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    inputs = repl.make_input_iterator(input_fn)
    losses = [float(repl.run(step, inputs)[0]) for _ in range(6)]
    losses.append(float(repl.run(step, inputs, num_steps=4)[0]))
    state = [w.numpy().tolist() for w in model.weights]
    return [losses, state, int(optimizer.iterations.numpy())]


def _case(name, is_sparse=False):
    def run():
        ours = train(
            MultiWorkerAsyncReplicator(), OPTIMIZERS[name], is_sparse=is_sparse
        )
        with tf.device("CPU:0"):
            single = replicator.create("single")
            reference = train(single, OPTIMIZERS[name], is_sparse=is_sparse)
        return [ours, reference]

    return run


for _name in OPTIMIZERS:
    CASES[_name] = _case(_name)
CASES["sparse_sgd"] = _case("sgd", is_sparse=True)
CASES["sparse_adam"] = _case("adam", is_sparse=True)


def staleness():
    """One worker is never behind itself."""
    repl = MultiWorkerAsyncReplicator()
    before = repl.staleness()
    train(repl, OPTIMIZERS["sgd"])
    after = repl.staleness()
    return [before.num_updates, before.mean, str(after), dict(after.histogram)]


CASES["staleness"] = staleness
