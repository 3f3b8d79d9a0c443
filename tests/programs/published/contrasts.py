"""Programs that compare examples, or divide by what all of them make."""

import keras
import tensorflow as tf
from keras import layers, ops

from published.examples import (
    BATCH,
    LENGTH,
    WORDS,
    batches,
    images,
    results,
    small,
    tokens,
)


class TripletModel(keras.Model):
    """Distances of an anchor to an example of its kind and of another one."""

    def __init__(self, tower):
        super().__init__()
        self.tower = tower
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        """Keras asks for one in order to build a model, under any strategy."""
        return self.tower(x)

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        """A loss for each triplet; the gradient is that of their sum."""
        with tf.GradientTape() as tape:
            anchor, positive, negative = (self.tower(image) for image in data)
            near = ops.sum(tf.square(anchor - positive), -1)
            far = ops.sum(tf.square(anchor - negative), -1)
            loss = ops.maximum(near - far + 0.5, 0.0)
        grads = tape.gradient(loss, self.tower.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.tower.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def triplet_loss(strategy):
    """Image similarity."""
    data = batches(images(), images(seed=2), images(seed=3))
    with strategy.scope():
        model = TripletModel(small(4))
        model.compile(optimizer=keras.optimizers.SGD(0.01))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


class EmbeddingModel(keras.Model):
    """Similarities of all anchors of a batch with all positives of it."""

    def train_step(self, data):
        """Each class occurs once in a batch, and is told from all others."""
        ((anchors, positives),) = data
        with tf.GradientTape() as tape:
            anchors = self(anchors, training=True)
            positives = self(positives, training=True)
            similarities = ops.einsum("ae,pe->ap", anchors, positives)
            sparse = ops.arange(tf.shape(anchors)[0])
            loss = self.loss_fn(sparse, similarities / 0.2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def metric_learning(strategy):
    """Every example is compared with every other one of the batch."""
    data = batches(images(), images(seed=2)).map(lambda *pair: (pair,))
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        outputs = layers.UnitNormalization()(layers.Dense(4)(layers.Flatten()(inputs)))
        model = EmbeddingModel(inputs, outputs)
        model.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.001))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


def _unlike(p, z):
    z = tf.math.l2_normalize(tf.stop_gradient(z), axis=1)
    p = tf.math.l2_normalize(p, axis=1)
    return -tf.reduce_mean(tf.reduce_sum(p * z, axis=1))


class SimSiam(keras.Model):
    """Two views of an image predict each other."""

    def __init__(self):
        super().__init__()
        self.encoder, self.predictor = small(5), layers.Dense(3)

    def call(self, x):
        return self.predictor(self.encoder(x))

    def train_step(self, data):
        """No negatives: a mean over images."""
        first, second = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(first), self.encoder(second)
            p1, p2 = self.predictor(z1), self.predictor(z2)
            loss = (_unlike(p1, z2) + _unlike(p2, z1)) / 2
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


def self_supervised(strategy):
    """A cosine schedule and momentum."""
    data = batches(images(), images(seed=2))
    with strategy.scope():
        model = SimSiam()
        rate = keras.optimizers.schedules.CosineDecay(0.03, 10)
        model.compile(optimizer=keras.optimizers.SGD(rate, momentum=0.6))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


class NNCLR(keras.Model):
    """Neighbours come from a queue of what was seen before."""

    def __init__(self):
        super().__init__()
        self.encoder = small(5)
        self.queue = tf.Variable(
            tf.math.l2_normalize(tf.ones([16, 3]), axis=1), trainable=False
        )

    def call(self, x):
        return self.encoder(x)

    def train_step(self, data):
        """The queue takes the batch in after it was used."""
        first, second = data
        with tf.GradientTape() as tape:
            z1 = tf.math.l2_normalize(self.encoder(first), axis=1)
            z2 = tf.math.l2_normalize(self.encoder(second), axis=1)
            nearest = tf.argmax(tf.matmul(z1, self.queue, transpose_b=True), axis=1)
            neighbours = tf.gather(self.queue, nearest)
            loss = -tf.reduce_mean(tf.reduce_sum(neighbours * z2, axis=1))
        weights = self.encoder.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        count = tf.shape(z1)[0]
        self.queue.assign(tf.concat([z1, self.queue[:-count]], axis=0))
        return {"loss": loss}


def nearest_neighbour_contrast(strategy):
    """State of a replica by which all train."""
    data = batches(images(), images(seed=2))
    with strategy.scope():
        model = NNCLR()
        model.compile(optimizer=keras.optimizers.Adam())
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


def translation_with_padding(strategy):
    """The loss of a sentence's words without those that only fill it up."""

    def masked_loss(label, pred):
        loss_object = keras.losses.SparseCategoricalCrossentropy(reduction="none")
        mask = tf.cast(label != 0, tf.float32)
        loss = loss_object(label, pred) * mask
        return tf.reduce_sum(loss) / tf.reduce_sum(mask)

    words = tokens()
    words[::3, 3:] = 0
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((LENGTH - 1,), dtype="int32"),
                layers.Embedding(WORDS, 4),
                layers.LSTM(4, return_sequences=True),
                layers.Dense(WORDS, activation="softmax"),
            ]
        )
        model.compile(optimizer="adam", loss=masked_loss)
    history = model.fit(words[:, :-1], words[:, 1:], batch_size=BATCH, verbose=0)
    return results(model, history)


def tagging_with_a_mask(strategy):
    """Keras' own mask, which reaches its loss."""
    words = tokens()
    words[::3, 3:] = 0
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                layers.Embedding(WORDS, 4, mask_zero=True),
                layers.LSTM(4, return_sequences=True),
                layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy")
    history = model.fit(words, words % 2, batch_size=BATCH, verbose=0)
    return results(model, history)
