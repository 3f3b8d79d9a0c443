"""Programs on columns of numbers and names that end in ``fit``."""

import keras
import numpy as np
from keras import layers

from published.examples import (
    BATCH,
    NUM_EXAMPLES,
    batches,
    labels,
    numbers,
    results,
)


def regression(strategy):
    """A column is normalized by statistics of the data, then a line is fitted."""
    x = numbers(NUM_EXAMPLES, 3)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    with strategy.scope():
        normalizer = layers.Normalization(axis=-1)
        normalizer.adapt(x)
        model = keras.Sequential([normalizer, layers.Dense(units=1)])
        rate = keras.optimizers.Adam(learning_rate=0.1)
        model.compile(optimizer=rate, loss="mean_absolute_error")
    history = model.fit(
        x, y, epochs=2, batch_size=BATCH, validation_split=0.5, verbose=0
    )
    return results(model, history, model.predict(x, batch_size=BATCH, verbose=0))


def overfitting(strategy):
    """Penalties on weights, a rate that decays, and a metric of the loss alone."""
    x, y = numbers(NUM_EXAMPLES, 4), labels(2, 1).astype(np.float32)
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Dense(6, activation="elu", kernel_regularizer="l2"),
                layers.Dense(6, activation="elu", activity_regularizer="l1"),
                layers.Dense(1),
            ]
        )
        rate = keras.optimizers.schedules.InverseTimeDecay(0.001, 2, 1.0)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        scores = [
            keras.metrics.BinaryCrossentropy(from_logits=True, name="crossentropy"),
            "accuracy",
        ]
        model.compile(keras.optimizers.Adam(rate), loss=loss, metrics=scores)
    history = model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


def imbalanced_data(strategy):
    """Weights of classes, a first bias, and counting metrics."""
    x, y = numbers(NUM_EXAMPLES, 4), (np.arange(NUM_EXAMPLES) % 8 == 0).astype(int)
    with strategy.scope():
        bias = keras.initializers.Constant(np.log(2 / 14))
        model = keras.Sequential(
            [
                layers.Dense(4, activation="relu"),
                layers.Dense(1, activation="sigmoid", bias_initializer=bias),
            ]
        )
        scores = [
            keras.metrics.TruePositives(name="tp"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.AUC(name="prc", curve="PR"),
        ]
        model.compile("adam", keras.losses.BinaryCrossentropy(), metrics=scores)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=2, class_weight={0: 0.57, 1: 4.0}, verbose=0
    )
    return results(model, history)


def structured_data(strategy):
    """A dictionary of columns, each with a layer that prepares it."""
    ages = numbers(NUM_EXAMPLES, 1)
    kinds = np.array([["cat"], ["dog"]] * (NUM_EXAMPLES // 2))
    y = labels(2)
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
    data = batches({"age": ages, "kind": kinds}, y)
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    return results(model, history)


def wide_and_deep(strategy):
    """A linear part beside a deep one."""
    x, y = numbers(NUM_EXAMPLES, 5), labels(2, 1).astype(np.float32)
    with strategy.scope():
        inputs = keras.Input((5,))
        deep = layers.Dense(6, activation="relu")(inputs)
        deep = layers.Dense(6, activation="relu")(deep)
        outputs = layers.Dense(1)(layers.Concatenate()([inputs, deep]))
        model = keras.Model(inputs, layers.Activation("sigmoid")(outputs))
        model.compile(
            keras.optimizers.Ftrl(0.05), "binary_crossentropy", metrics=["AUC"]
        )
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


def several_outputs(strategy):
    """Two losses with weights, and metrics by output."""
    x = numbers(NUM_EXAMPLES, 5)
    y = {"price": x[:, :1], "kind": labels(3)}
    with strategy.scope():
        inputs = keras.Input((5,))
        hidden = layers.Dense(6, activation="tanh")(inputs)
        price = layers.Dense(1, name="price")(hidden)
        kind = layers.Dense(3, activation="softmax", name="kind")(hidden)
        model = keras.Model(inputs, {"price": price, "kind": kind})
        model.compile(
            optimizer=keras.optimizers.Nadam(0.01),
            loss={"price": "mse", "kind": "sparse_categorical_crossentropy"},
            loss_weights={"price": 0.5, "kind": 1.0},
            metrics={"kind": ["accuracy"]},
        )
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


class Recommender(keras.Model):
    """Vectors and biases of users and films."""

    def __init__(self, count=NUM_EXAMPLES, width=3):
        super().__init__()
        options = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": "l2",
        }
        self.user, self.film = (layers.Embedding(count, width, **options) for _ in "12")
        self.user_bias, self.film_bias = (layers.Embedding(count, 1) for _ in "12")

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        match = keras.ops.sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return keras.ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


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
        pairs, ratings, batch_size=BATCH, epochs=2, validation_split=0.5, verbose=0
    )
    return results(model, history)
