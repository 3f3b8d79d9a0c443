"""WGAN-GP whose critic normalizes over all replicas: a gradient of a gradient."""

import keras
import tensorflow as tf

import replicator
from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 3
PENALTY = 10.0


def train(repl):
    """The critic's part: its loss has the gradient by its inputs in it."""
    with repl.context():
        critic = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(8, use_bias=False),
                replicator.CrossReplicaBatchNormalization(variance_form="two_pass"),
                keras.layers.Activation("tanh"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.5))

    def step(batch):
        real, fake, mix = batch
        between = real + mix * (fake - real)
        weights = critic.trainable_variables
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(between)
                scores = critic(between, training=True)
            slopes = inner.gradient(scores, between)
            norms = tf.sqrt(tf.reduce_sum(slopes**2, axis=1) + 1e-12)
            penalty = tf.reduce_mean((norms - 1.0) ** 2)
            distance = tf.reduce_mean(critic(fake, training=True)) - tf.reduce_mean(
                critic(real, training=True)
            )
            loss = distance + PENALTY * penalty
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        mix = abs(normal(20 + index, 8, 1)) % 1.0
        batch = share(repl, normal(index, 8, 5) + 0.5, normal(10 + index, 8, 5), mix)
        losses.append(float(repl.run(step, batch)[0]))
    return {"losses": losses, "weights": arrays(critic.weights)}
