"""Programs that end in ``fit``, with a loss that ``compile`` takes."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    LENGTH,
    NUM_EXAMPLES,
    TEXTS,
    WORDS,
    batches,
    images,
    labels,
    numbers,
    results,
    tokens,
)


def transfer_learning(strategy):
    """A frozen base and a new head, and then all of it at a low rate."""
    x, y = images(channels=3), labels(2)
    with strategy.scope():
        base = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
            ]
        )
        base.trainable = False
        inputs = keras.Input((8, 8, 3))
        outputs = layers.Dense(1)(base(inputs, training=False))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["binary_accuracy"])
        first = model.fit(x, y, batch_size=BATCH, verbose=0)
        base.trainable = True
        model.compile(keras.optimizers.RMSprop(0.001), loss)
    second = model.fit(x, y, batch_size=BATCH, epochs=2, initial_epoch=1, verbose=0)
    return results(model, first, second)


def recurrent_text_classification(strategy):
    """Strings reach the replicas; a mask ends in a bidirectional LSTM."""
    data = batches(np.array(TEXTS), labels(2).astype(np.float32))
    with strategy.scope():
        encoder = layers.TextVectorization(max_tokens=20)
        encoder.adapt(TEXTS)
        model = keras.Sequential(
            [
                keras.Input((), dtype=tf.string),
                encoder,
                layers.Embedding(20, 4, mask_zero=True),
                layers.Bidirectional(layers.LSTM(3)),
                layers.Dense(4, activation="relu"),
                layers.Dense(1),
            ]
        )
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    return results(model, history)


def structured_data(strategy):
    """A dictionary of columns, each with a layer that prepares it."""
    ages = numbers(NUM_EXAMPLES, 1)
    kinds = np.array([["cat"], ["dog"]] * (NUM_EXAMPLES // 2))
    with strategy.scope():
        age = keras.Input((1,), name="age")
        kind = keras.Input((1,), name="kind", dtype="string")
        scale = layers.Normalization()
        scale.adapt(ages)
        lookup = layers.StringLookup(vocabulary=["cat", "dog"], output_mode="multi_hot")
        features = layers.Concatenate()([scale(age), lookup(kind)])
        outputs = layers.Dense(1)(layers.Dense(4, activation="relu")(features))
        model = keras.Model({"age": age, "kind": kind}, outputs)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    data = batches({"age": ages, "kind": kinds}, labels(2))
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    return results(model, history)


def several_outputs(strategy):
    """Two losses with weights, and metrics by output."""
    x = numbers(NUM_EXAMPLES, 5)
    y = {"priority": x[:, :1], "department": labels(3)}
    with strategy.scope():
        inputs = keras.Input((5,))
        hidden = layers.Dense(6, activation="tanh")(inputs)
        priority = layers.Dense(1, name="priority")(hidden)
        department = layers.Dense(3, activation="softmax", name="department")(hidden)
        model = keras.Model(inputs, {"priority": priority, "department": department})
        model.compile(
            optimizer=keras.optimizers.RMSprop(1e-3),
            loss={"priority": "mse", "department": "sparse_categorical_crossentropy"},
            loss_weights={"priority": 1.0, "department": 0.2},
            metrics={"department": ["accuracy"]},
        )
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class Recommender(keras.Model):
    def __init__(self, count=NUM_EXAMPLES, width=3):
        super().__init__()
        options = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.l2(1e-6),
        }
        self.user, self.film = (layers.Embedding(count, width, **options) for _ in "12")
        self.user_bias, self.film_bias = (layers.Embedding(count, 1) for _ in "12")

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        match = layers.Dot(axes=1)([self.user(user), self.film(film)])
        return tf.nn.sigmoid(match + self.user_bias(user) + self.film_bias(film))


def collaborative_filtering(strategy):
    """Ratings of pairs; the rows of tables that a batch names are updated."""
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, NUM_EXAMPLES, (NUM_EXAMPLES, 2))
    ratings = generator.uniform(size=(NUM_EXAMPLES, 1))
    with strategy.scope():
        model = Recommender()
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(learning_rate=0.001),
        )
    history = model.fit(
        pairs,
        ratings,
        batch_size=BATCH,
        epochs=2,
        validation_data=(pairs, ratings),
        verbose=0,
    )
    return results(model, history)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, width=4.0, warmup_steps=3.0):
        self.width, self.warmup_steps = width, warmup_steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        rate = tf.minimum(tf.math.rsqrt(step), step * self.warmup_steps**-1.5)
        return tf.math.rsqrt(self.width) * rate


def translation_with_padding(strategy):
    """Loss and accuracy of the words, without those that only fill a sentence up."""

    def masked_loss(label, pred):
        mask = label != 0
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )(label, pred)
        mask = tf.cast(mask, loss.dtype)
        return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)

    def masked_accuracy(label, pred):
        right = tf.cast(label, tf.int64) == tf.argmax(pred, axis=2)
        mask = label != 0
        right = tf.cast(right & mask, tf.float32)
        return tf.reduce_sum(right) / tf.reduce_sum(tf.cast(mask, tf.float32))

    source, target = tokens(), tokens(seed=2)
    with strategy.scope():
        context = keras.Input((LENGTH,), dtype="int32")
        before = keras.Input((LENGTH - 1,), dtype="int32")
        words = layers.Embedding(WORDS, 4)
        hidden, memory = words(before), words(context)
        # Without biases: that of keys has no gradient but rounding.
        own, cross = (layers.MultiHeadAttention(2, 2, use_bias=False) for _ in "12")
        hidden = hidden + own(hidden, hidden, use_causal_mask=True)
        hidden = layers.LayerNormalization()(hidden)
        hidden = hidden + cross(hidden, memory)
        model = keras.Model((context, before), layers.Dense(WORDS)(hidden))
        optimizer = keras.optimizers.Adam(
            WarmUp(), beta_1=0.9, beta_2=0.98, epsilon=1e-9
        )
        model.compile(optimizer, loss=masked_loss, metrics=[masked_accuracy])
    data = batches(source, target[:, :-1], target[:, 1:])
    data = data.map(lambda context, before, label: ((context, before), label))
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    return results(model, history)
