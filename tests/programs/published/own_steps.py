"""Programs that end in ``fit`` of a model with a step, or a loss, of its own."""

import keras
import tensorflow as tf
from keras import layers, ops

from published.examples import (
    BATCH,
    images,
    labels,
    noise_of,
    numbers,
    results,
    small,
)


class OwnStep(keras.Model):
    """The step of Keras' guide."""

    def train_step(self, data):
        """A forward pass, the compiled loss, gradients, an update, metrics."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def customized_fit(strategy):
    """Metrics are updated by the step itself, one of them by the loss."""
    with strategy.scope():
        inputs = keras.Input((4,))
        model = OwnStep(inputs, layers.Dense(1)(inputs))
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    x = numbers(16, 4)
    history = model.fit(x, x[:, :1], batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class VAE(keras.Model):
    """A loss of two means, each over sums of an image."""

    def __init__(self, latent_dim=2):
        super().__init__()
        hidden = layers.Dense(5, activation="relu")
        self.encoder = keras.Sequential([layers.Flatten(), hidden])
        self.mean, self.log_var = (layers.Dense(latent_dim) for _ in "12")
        self.decoder = keras.Sequential(
            [layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))]
        )
        names = "loss", "reconstruction_loss", "kl_loss"
        self.trackers = [keras.metrics.Mean(name=name) for name in names]

    @property
    def metrics(self):
        return self.trackers

    def call(self, data):
        """An image, its code by the numbers of the image."""
        hidden = self.encoder(data)
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        code = mean + ops.exp(0.5 * log_var) * noise_of(data, 2)
        return self.decoder(code), mean, log_var

    def train_step(self, data):
        """Trackers hold what was minimized."""
        with tf.GradientTape() as tape:
            made, mean, log_var = self(data)
            errors = keras.losses.binary_crossentropy(data, made)
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = reconstruction + kl
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        for tracker, loss in zip(self.trackers, (total, reconstruction, kl)):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def variational_autoencoder(strategy):
    """A step that never asks Keras for a loss."""
    with strategy.scope():
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam())
    history = model.fit(images(), epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


class VectorQuantizer(layers.Layer):
    """The nearest row of a codebook, and gradients straight through."""

    def __init__(self, count=6, width=3):
        super().__init__()
        self.codebook = self.add_weight(shape=(width, count), initializer="uniform")

    def call(self, x):
        """Adds the loss of the codebook and that of commitment."""
        flat = tf.reshape(x, [-1, x.shape[-1]])
        distances = (
            tf.reduce_sum(flat**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.codebook**2, axis=0)
            - 2 * tf.matmul(flat, self.codebook)
        )
        chosen = tf.one_hot(tf.argmin(distances, axis=1), self.codebook.shape[1])
        rows = tf.matmul(chosen, self.codebook, transpose_b=True)
        rows = tf.reshape(rows, tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(rows) - x) ** 2)
        codes = tf.reduce_mean((rows - tf.stop_gradient(x)) ** 2)
        self.add_loss(0.25 * commitment + codes)
        return x + tf.stop_gradient(rows - x)


class VQVAETrainer(keras.Model):
    """A model within a model, whose losses the step adds up."""

    def __init__(self):
        super().__init__()
        inputs = keras.Input((8, 8, 1))
        code = layers.Conv2D(3, 3, strides=2, padding="same")(inputs)
        code = VectorQuantizer()(code)
        outputs = layers.Conv2DTranspose(1, 3, strides=2, padding="same")(code)
        self.vqvae = keras.Model(inputs, outputs)
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")

    def call(self, x):
        """Keras asks for one in order to build a model, under any strategy."""
        return x

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, x):
        """The error over the variance of all data, and added losses."""
        with tf.GradientTape() as tape:
            made = self.vqvae(x)
            total = tf.reduce_mean((x - made) ** 2) / 0.08 + sum(self.vqvae.losses)
        weights = self.vqvae.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights))
        self.total_loss_tracker.update_state(total)
        return {"loss": self.total_loss_tracker.result()}


def vector_quantized_autoencoder(strategy):
    """Its codebook is trained by gradients."""
    with strategy.scope():
        model = VQVAETrainer()
        model.compile(optimizer=keras.optimizers.Adam())
    history = model.fit(images(), epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


class Distiller(keras.Model):
    """A student that learns from labels and from a teacher."""

    def __init__(self, student, teacher):
        super().__init__()
        self.teacher, self.student = teacher, student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Keras' own step asks for it."""
        del sample_weight, training
        soft = ops.softmax(self.teacher(x, training=False) / 3.0, axis=1)
        distillation = self.distillation_loss_fn(
            soft, ops.softmax(y_pred / 3.0, axis=1)
        )
        return 0.1 * self.student_loss_fn(y, y_pred) + 0.9 * distillation * 9.0

    def call(self, x):
        """What the student says."""
        return self.student(x)


def knowledge_distillation(strategy):
    """The teacher is trained before, by ``fit`` too."""
    x, y = images(), labels()
    with strategy.scope():
        teacher, student = small(6), small(3)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        teacher.compile("adam", loss)
        model = Distiller(student=student, teacher=teacher)
        model.compile(
            optimizer=keras.optimizers.Adam(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=loss,
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
    first = teacher.fit(x, y, batch_size=BATCH, verbose=0)
    second = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, first, second)


class AdversarialTraining(keras.Sequential):
    """Examples are moved along the gradient of their loss before they are learnt."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """The usual loss, and that of moved examples."""
        del sample_weight, training
        with tf.GradientTape() as tape:
            tape.watch(x)
            inner = tf.reduce_sum(keras.losses.binary_crossentropy(y, self(x)))
        moved = x + 0.1 * tf.sign(tape.gradient(inner, x))
        usual = super().compute_loss(x=x, y=y, y_pred=y_pred)
        return usual + 0.2 * super().compute_loss(x=x, y=y, y_pred=self(moved))


def adversarial_training(strategy):
    """The gradient by the inputs is an example's own."""
    x, y = numbers(16, 4), labels(2, 1)
    with strategy.scope():
        model = AdversarialTraining([layers.Dense(1, activation="sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)
