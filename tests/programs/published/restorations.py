"""Programs that end in ``fit`` of a model that restores what was hidden or noisy."""

import keras
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    WORDS,
    batches,
    images,
    noise_of,
    results,
    tokens,
)


class MaskedLanguageModel(keras.Model):
    """A loss for each word, weighed by which words were hidden."""

    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(WORDS, 4)
        self.attend = layers.MultiHeadAttention(2, 2)
        self.words = layers.Dense(WORDS, activation="softmax")
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x):
        """A probability for each word, at each place."""
        hidden = self.embed(x)
        return self.words(hidden + self.attend(hidden, hidden))

    def train_step(self, inputs):
        """The gradient of losses that nothing has reduced is that of their sum."""
        features, truth, weights = inputs
        with tf.GradientTape() as tape:
            loss = self.loss_fn(truth, self(features), sample_weight=weights)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.loss_tracker.update_state(loss, sample_weight=weights)
        return {"loss": self.loss_tracker.result()}


def masked_language_model(strategy):
    """In the manner of BERT."""
    words = tokens()
    hidden = (words % 3 == 0).astype("float32")
    data = batches((words * (1 - hidden)).astype("int32"), words, hidden)
    with strategy.scope():
        model = MaskedLanguageModel()
        model.compile(optimizer=keras.optimizers.SGD(0.01))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


class MaskedAutoencoder(keras.Model):
    """Patches that were left out are predicted from the others."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = layers.Dense(6, activation="gelu"), layers.Dense(16)

    def call(self, x):
        """Keras asks for one in order to build a model, under any strategy."""
        return x

    def train_step(self, patches):
        """The compiled loss of the hidden patches alone."""
        order = tf.argsort(tf.reduce_sum(patches, -1), axis=1)
        hidden, seen = order[:, :2], order[:, 2:]
        target = tf.gather(patches, hidden, batch_dims=1)
        with tf.GradientTape() as tape:
            code = self.encode(tf.gather(patches, seen, batch_dims=1))
            made = self.decode(code)
            total = self.compute_loss(y=target, y_pred=made)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights))
        self.compiled_metrics_of(target, made)
        return {m.name: m.result() for m in self.metrics}

    def compiled_metrics_of(self, target, made):
        """All but the loss."""
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(target, made)


def masked_autoencoder(strategy):
    """A choice of patches that differs between images."""
    patches = images().reshape(16, 4, 16)
    with strategy.scope():
        model = MaskedAutoencoder()
        model.compile(
            optimizer=keras.optimizers.AdamW(0.005),
            loss=keras.losses.MeanSquaredError(),
            metrics=["mae"],
        )
    history = model.fit(patches, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class Diffusion(keras.Model):
    """The noise in an image is predicted, and weights are averaged by the step."""

    def __init__(self):
        super().__init__()
        self.network = keras.Sequential([layers.Flatten(), layers.Dense(64)])
        self.ema = keras.models.clone_model(self.network)
        for network in (self.network, self.ema):
            network.build((None, 8, 8, 1))
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    def call(self, x):
        return x

    @property
    def metrics(self):
        return [self.noise_loss_tracker]

    def train_step(self, image):
        """The compiled loss is a class, which reduces; then the averages."""
        noise = noise_of(image, 64)
        signal = tf.cos(tf.abs(noise_of(image, 1)))
        noisy = signal * tf.reshape(image, [-1, 64]) + (1 - signal) * noise
        with tf.GradientTape() as tape:
            loss = self.loss(noise, self.network(tf.reshape(noisy, tf.shape(image))))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.noise_loss_tracker.update_state(loss)
        for weight, average in zip(self.network.weights, self.ema.weights):
            average.assign(0.99 * average + 0.01 * weight)
        return {m.name: m.result() for m in self.metrics}


def diffusion(strategy):
    """A second network that follows the first."""
    with strategy.scope():
        model = Diffusion()
        model.compile(
            optimizer=keras.optimizers.AdamW(0.001, weight_decay=1e-4),
            loss=keras.losses.MeanAbsoluteError(),
        )
    history = model.fit(batches(images()), epochs=2, verbose=0)
    return results(model, history)
