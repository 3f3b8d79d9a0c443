"""A generator and a discriminator, two tapes over one forward pass, two optimizers."""

import keras
import tensorflow as tf

from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 3


def train(repl):
    """Alternating updates in one step, as in TensorFlow's DCGAN tutorial."""
    with repl.context():
        generator = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(6),
            ]
        )
        discriminator = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="leaky_relu"),
                keras.layers.Dense(1),
            ]
        )
        of_generator = repl.wrap_optimizer(keras.optimizers.Adam(1e-2, beta_1=0.5))
        of_discriminator = repl.wrap_optimizer(keras.optimizers.Adam(1e-2, beta_1=0.5))
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(batch):
        real, noise = batch
        with tf.GradientTape() as generator_tape, tf.GradientTape() as tape:
            fake = generator(noise, training=True)
            on_real = discriminator(real, training=True)
            on_fake = discriminator(fake, training=True)
            generator_loss = cross_entropy(tf.ones_like(on_fake), on_fake)
            loss = cross_entropy(tf.ones_like(on_real), on_real) + cross_entropy(
                tf.zeros_like(on_fake), on_fake
            )
        weights = generator.trainable_variables
        grads = generator_tape.gradient(generator_loss, weights)
        of_generator.apply_gradients(zip(grads, weights, strict=True))
        weights = discriminator.trainable_variables
        grads = tape.gradient(loss, weights)
        of_discriminator.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(generator_loss), mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        batch = share(repl, normal(index, 8, 6) + 1.0, normal(10 + index, 8, 4))
        outputs = repl.run(step, batch)
        losses.append([float(per_replica[0]) for per_replica in outputs])
    return {
        "losses": losses,
        "generator": arrays(generator.weights),
        "discriminator": arrays(discriminator.weights),
    }
