"""Layers that compute in float16, float32 weights, and a dynamic loss scale."""

import keras
import tensorflow as tf

from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 3
# Sums over 8 examples or over 4 and 4 are rounded to 11 bits: 5e-4 of values near 1.
ATOL = 4e-3


def train(repl):
    """As Keras' guide on mixed precision, with the scale of the wrapped optimizer."""
    with repl.context():
        layers = [
            keras.layers.Dense(8, activation="tanh", dtype="mixed_float16"),
            keras.layers.Dense(1, dtype="mixed_float16"),
        ]
        layers[0].build([None, 4])
        layers[1].build([None, 8])
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), loss_scale="dynamic"
        )
    weights = [weight for layer in layers for weight in layer.trainable_variables]

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = tf.cast(layers[1](layers[0](x)), tf.float32)
            loss = tf.reduce_mean((outputs - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        batch = share(repl, normal(index, 8, 4), normal(10 + index, 8, 1))
        losses.append(float(repl.run(step, batch)[0]))
    return {
        "losses": losses,
        "weights": arrays(weights),
        "loss_scale": float(optimizer.loss_scale.scale.numpy()),
    }
