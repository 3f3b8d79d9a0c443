"""Programs that end in ``fit`` of a model with a step of its own: two networks."""

import keras
import tensorflow as tf
from keras import layers

from published.examples import BATCH, batches, images, labels, noise_of, results

LATENT = 4


def _generator(width=LATENT):
    return keras.Sequential(
        [
            keras.Input((width,)),
            layers.Dense(4 * 4 * 2),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Reshape((4, 4, 2)),
            layers.Conv2DTranspose(
                1, 4, strides=2, padding="same", activation="sigmoid"
            ),
        ]
    )


def _discriminator(channels=1):
    return keras.Sequential(
        [
            keras.Input((8, 8, channels)),
            layers.Conv2D(3, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


class GAN(keras.Model):
    """The discriminator learns to tell images apart, then the generator."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def call(self, x):
        """Keras asks for one in order to build a model, under any strategy."""
        return x

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        """Which are reset before each epoch."""
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, real_images):
        """Both in turn; logs come from metrics."""
        count = tf.shape(real_images)[0]
        noise = noise_of(real_images, LATENT)
        generated = self.generator(noise)
        combined = tf.concat([generated, real_images], axis=0)
        truth = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(combined))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))
        misleading = tf.zeros((count, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(misleading, predictions)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {
            "d_loss": self.d_loss_tracker.result(),
            "g_loss": self.g_loss_tracker.result(),
        }


def gan_with_own_step(strategy):
    """A loss of Keras in a step that Keras has not written."""
    with strategy.scope():
        model = GAN(discriminator=_discriminator(), generator=_generator())
        model.compile(
            d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
            g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
            loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = model.fit(batches(images()), epochs=2, verbose=0)
    return results(model, history)


class ConditionalGAN(GAN):
    """The class of an image is one more channel, and one more input."""

    def call(self, x):
        return x

    def train_step(self, data):
        real_images, classes = data
        one_hot = tf.one_hot(classes, 3)
        planes = tf.tile(one_hot[:, None, None, :], [1, 8, 8, 1])
        noise = tf.concat([noise_of(real_images, LATENT), one_hot], axis=1)
        made = tf.concat([self.generator(noise), planes], -1)
        combined = tf.concat([made, tf.concat([real_images, planes], -1)], axis=0)
        count = tf.shape(real_images)[0]
        truth = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(combined))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))
        with tf.GradientTape() as tape:
            fake = tf.concat([self.generator(noise), planes], -1)
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(fake))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


def conditional_gan(strategy):
    """Images and labels, the same two updates."""
    with strategy.scope():
        model = ConditionalGAN(_discriminator(4), _generator(LATENT + 3))
        model.compile(
            keras.optimizers.Adam(0.0003),
            keras.optimizers.Adam(0.0003),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = model.fit(batches(images(), labels()), epochs=2, verbose=0)
    return results(model, history)


class WGAN(keras.Model):
    """A critic that is trained twice, with a penalty on its gradient."""

    def __init__(self):
        super().__init__()
        self.critic = _discriminator()
        self.generator = _generator()

    def call(self, x):
        return x

    def compile(self, d_optimizer, g_optimizer):
        """Losses are functions of means."""
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer

    def gradient_penalty(self, real_images, fake_images):
        """How far norms of gradients are from 1, between both images."""
        alpha = tf.abs(noise_of(real_images, 1))[:, :, None, None]
        between = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as tape:
            tape.watch(between)
            predicted = self.critic(between, training=True)
        slopes = tape.gradient(predicted, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1, 2, 3]) + 1e-6)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real_images):
        """No loss of Keras anywhere."""
        for _ in range(2):
            noise = noise_of(real_images, LATENT)
            with tf.GradientTape() as tape:
                fake_images = self.generator(noise, training=True)
                fake = tf.reduce_mean(self.critic(fake_images, training=True))
                real = tf.reduce_mean(self.critic(real_images, training=True))
                penalty = self.gradient_penalty(real_images, fake_images)
                d_loss = fake - real + 10.0 * penalty
            weights = self.critic.trainable_variables
            grads = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(grads, weights))
        with tf.GradientTape() as tape:
            made = self.generator(noise_of(real_images, LATENT), training=True)
            g_loss = -tf.reduce_mean(self.critic(made, training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        return {"d_loss": d_loss, "g_loss": g_loss}


def wasserstein_gan(strategy):
    """A gradient within a gradient."""
    with strategy.scope():
        model = WGAN()
        model.compile(
            d_optimizer=keras.optimizers.Adam(0.0002, beta_1=0.5, beta_2=0.9),
            g_optimizer=keras.optimizers.Adam(0.0002, beta_1=0.5, beta_2=0.9),
        )
    history = model.fit(images(), batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class CycleGAN(keras.Model):
    """Two generators that undo each other, and two discriminators."""

    def __init__(self):
        super().__init__()
        self.gen_g, self.gen_f = (_translator() for _ in "12")
        self.disc_x, self.disc_y = (_discriminator() for _ in "12")
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.identity_loss_fn = keras.losses.MeanAbsoluteError()
        self.adversarial_loss_fn = keras.losses.MeanSquaredError()

    def call(self, x):
        return x

    def compile(self, optimizer_of):
        super().compile()
        self.optimizers = [optimizer_of() for _ in range(4)]

    def train_step(self, batch_data):
        """A persistent tape, four losses, four updates."""
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y = self.gen_g(real_x, training=True)
            fake_x = self.gen_f(real_y, training=True)
            cycled_x = self.gen_f(fake_y, training=True)
            cycled_y = self.gen_g(fake_x, training=True)
            on_real_x, on_fake_x = self.disc_x(real_x), self.disc_x(fake_x)
            on_real_y, on_fake_y = self.disc_y(real_y), self.disc_y(fake_y)
            fooled = self.adversarial_loss_fn
            cycle = self.cycle_loss_fn(real_x, cycled_x) * 10.0
            cycle += self.cycle_loss_fn(real_y, cycled_y) * 10.0
            same = self.identity_loss_fn(real_y, self.gen_g(real_y, training=True))
            total_g = fooled(tf.ones_like(on_fake_y), on_fake_y) + cycle + same
            total_f = fooled(tf.ones_like(on_fake_x), on_fake_x) + cycle
            loss_x = 0.5 * (
                fooled(tf.ones_like(on_real_x), on_real_x)
                + fooled(tf.zeros_like(on_fake_x), on_fake_x)
            )
            loss_y = 0.5 * (
                fooled(tf.ones_like(on_real_y), on_real_y)
                + fooled(tf.zeros_like(on_fake_y), on_fake_y)
            )
        networks = self.gen_g, self.gen_f, self.disc_x, self.disc_y
        losses = total_g, total_f, loss_x, loss_y
        for optimizer, network, loss in zip(self.optimizers, networks, losses):
            weights = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"G_loss": total_g, "F_loss": total_f, "D_X": loss_x, "D_Y": loss_y}


def _translator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )


def cycle_gan(strategy):
    """Logs are losses, not metrics."""
    with strategy.scope():
        model = CycleGAN()
        model.compile(lambda: keras.optimizers.Adam(2e-4, beta_1=0.5))
    history = model.fit(batches(images(), images(seed=2)), epochs=2, verbose=0)
    return results(model, history)


class Pix2Pix(GAN):
    """A translation that is judged as well by its distance from the target."""

    def call(self, x):
        return x

    def train_step(self, data):
        """A loss of Keras, and a mean that the step takes itself."""
        source, target = data
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            made = self.generator(source, training=True)
            on_real = self.discriminator(tf.concat([source, target], -1))
            on_made = self.discriminator(tf.concat([source, made], -1))
            g_loss = self.loss_fn(tf.ones_like(on_made), on_made)
            g_loss += 100.0 * tf.reduce_mean(tf.abs(target - made))
            d_loss = self.loss_fn(tf.ones_like(on_real), on_real)
            d_loss += self.loss_fn(tf.zeros_like(on_made), on_made)
        weights = self.generator.trainable_variables
        grads = g_tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(grads, weights))
        weights = self.discriminator.trainable_variables
        grads = d_tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(grads, weights))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


def image_translation(strategy):
    """Both kinds of mean in one loss."""
    with strategy.scope():
        model = Pix2Pix(_discriminator(2), _translator())
        model.compile(
            keras.optimizers.Adam(2e-4, beta_1=0.5),
            keras.optimizers.Adam(2e-4, beta_1=0.5),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = model.fit(batches(images(), images(seed=2)), epochs=2, verbose=0)
    return results(model, history)
