"""A model over two devices: layers on one logical device each, per replica."""

from __future__ import annotations

import keras
import tensorflow as tf

import replicator
from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 3
NUM_LOGICAL_DEVICES = 2


def train(repl):
    """The hidden layer is on device 0, the head and the loss are on device 1."""
    with repl.context():
        with replicator.logical_device(0):
            hidden = keras.layers.Dense(6, activation="tanh")
            hidden.build([None, 4])
        with replicator.logical_device(1):
            head = keras.layers.Dense(1)
            head.build([None, 6])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    weights = [*hidden.trainable_variables, *head.trainable_variables]

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            with replicator.logical_device(0):
                features = hidden(x)
            with replicator.logical_device(1):
                loss = tf.reduce_mean((head(features) - y) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        batch = share(repl, normal(index, 8, 4), normal(10 + index, 8, 1))
        losses.append(float(repl.run(step, batch)[0]))
    return {"losses": losses, "weights": arrays(weights)}
