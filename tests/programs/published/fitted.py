"""Programs that end in ``fit`` with a loss, and loops of ``tf.distribute``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NUM_EXAMPLES = 16
BATCH = 8
WORDS = 12
LENGTH = 6
TEXTS = [
    "a good film with a fine story",
    "a poor film and a dull story",
    "the cast is fine and so is the plot",
    "the plot is dull and the end is poor",
] * (NUM_EXAMPLES // 4)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def images(size: int = 8, channels: int = 1, seed: int = 0) -> Any:
    shape = NUM_EXAMPLES, size, size, channels
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def labels(num_classes: int = 3) -> Any:
    generator = np.random.default_rng(1)
    return generator.integers(0, num_classes, NUM_EXAMPLES).astype(np.int32)


def tokens(seed: int = 0) -> Any:
    """16 rows of word numbers from 1; in every third, 0 fills up what is missing."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, WORDS, (NUM_EXAMPLES, LENGTH)).astype(np.int32)
    words[seed::3, 3:] = 0
    return words


def noise_of(values: Any, width: int) -> tf.Tensor:
    """What ``tf.random.normal`` gives in the published program, by example.

    A replica cannot draw what one device draws, so that these numbers look random but
    follow from the example.
    """
    integers = tf.cast(tf.convert_to_tensor(values) * 1000.0, tf.int32)
    axes = list(range(1, len(integers.shape)))
    keys = tf.cast(tf.reduce_sum(integers, axes) % 997, tf.float32)
    return tf.sin(keys[:, tf.newaxis] * tf.range(1.0, width + 1.0))


def results(model: Any, *more: Any) -> list[Any]:
    found: list[Any] = []
    for value in more:
        found += value.history.values() if hasattr(value, "history") else [value]
    return [*found, *(np.asarray(weight) for weight in model.get_weights())]


def batches(*arrays: Any) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])
    return data.batch(BATCH, drop_remainder=True)


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


SUM = tf.distribute.ReduceOp.SUM


def custom_training(strategy):
    """Train and test steps, metrics, and an epoch that is a loop in one function."""
    train_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    test_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy, test_accuracy = (
            keras.metrics.SparseCategoricalAccuracy(name=name)
            for name in ("train_accuracy", "test_accuracy")
        )
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(3, 3, activation="relu", kernel_regularizer="l2"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        optimizer = keras.optimizers.Adam(learning_rate=0.001)
        optimizer.build(model.trainable_variables)

    def compute_loss(truth, predictions, model_losses):
        per_example = loss_object(truth, predictions)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=BATCH)
        return loss + tf.nn.scale_regularization_loss(tf.add_n(model_losses))

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = compute_loss(y, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(y, predictions)
        return loss

    def test_step(inputs):
        x, y = inputs
        predictions = model(x, training=False)
        test_loss.update_state(loss_object(y, predictions))
        test_accuracy.update_state(y, predictions)

    @tf.function
    def distributed_test_step(inputs):
        return strategy.run(test_step, args=(inputs,))

    @tf.function
    def distributed_train_epoch(iterator, num_batches):
        total_loss = 0.0
        for _ in tf.range(num_batches):
            per_replica = strategy.run(train_step, args=(next(iterator),))
            total_loss += strategy.reduce(SUM, per_replica, axis=None)
        return total_loss / tf.cast(num_batches, tf.float32)

    found = []
    for _ in range(2):
        found.append(distributed_train_epoch(iter(train_data), tf.constant(2)))
        for inputs in test_data:
            distributed_test_step(inputs)
        for metric in (train_accuracy, test_loss, test_accuracy):
            found.append(metric.result())
            metric.reset_state()
    return results(model, *map(float, found))


def distributed_input(strategy):
    """A pipeline per replica from a function, its iterator in a function."""
    x = numbers(16, 3)

    def dataset_fn(context):
        size = context.get_per_replica_batch_size(BATCH)
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(size)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    data = strategy.distribute_datasets_from_function(dataset_fn)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train_step(iterator):
        def step(inputs):
            features, y = inputs
            with tf.GradientTape() as tape:
                squares = tf.square(y - model(features))[:, 0]
                loss = tf.nn.compute_average_loss(squares)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        losses = strategy.run(step, args=(next(iterator),))
        return strategy.reduce(SUM, losses, axis=None)

    iterator = iter(data)
    return results(model, *[float(train_step(iterator)) for _ in range(2)])
