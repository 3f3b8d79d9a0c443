"""Programs on texts and series that end in ``fit``, with a loss from Keras."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    LENGTH,
    TEXTS,
    WORDS,
    batches,
    labels,
    numbers,
    results,
    tokens,
)


def text_classification(strategy):
    """Strings become numbers in the pipeline."""
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=LENGTH)
    vectorize.adapt(TEXTS)
    data = batches(np.array(TEXTS), labels(2).astype(np.float32))
    data = data.map(lambda text, label: (vectorize(text), label)).cache()
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Embedding(20, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer="adam",
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)],
        )
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history)


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


class Writer(keras.Model):
    """A GRU that predicts the next character."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(WORDS, 4)
        self.gru = layers.GRU(5, return_sequences=True, return_state=True)
        self.dense = layers.Dense(WORDS)

    def call(self, inputs, states=None, return_state=False, training=False):
        """Logits at each place, and the state if asked for."""
        x = self.embedding(inputs, training=training)
        x, states = self.gru(x, initial_state=states, training=training)
        x = self.dense(x, training=training)
        return (x, states) if return_state else x


def text_generation(strategy):
    """A subclassed model that its first batch builds."""
    text = tokens()
    data = batches(text[:, :-1], text[:, 1:])
    with strategy.scope():
        model = Writer()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss)
    history = model.fit(data, epochs=2, verbose=0)
    logits, _ = model(text[:2], return_state=True)
    return results(model, history, logits)


class SkipGram(keras.Model):
    """Dot products of a word with those in its context, and with others."""

    def __init__(self):
        super().__init__()
        self.target = layers.Embedding(WORDS, 4)
        self.context = layers.Embedding(WORDS, 4)

    def call(self, pair):
        """A logit for each word of the context."""
        target, context = pair
        return tf.einsum("be,bce->bc", self.target(target), self.context(context))


def word_vectors(strategy):
    """Sparse gradients of two tables."""
    words = tokens()
    y = np.zeros([len(words), LENGTH - 1], np.float32)
    y[:, 0] = 1.0
    data = batches(words[:, 0], words[:, 1:], y)
    data = data.map(lambda target, context, label: ((target, context), label))
    with strategy.scope():
        model = SkipGram()
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history)


class Block(layers.Layer):
    """Attention and two dense layers, each added to what came in."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)
        self.dense = keras.Sequential(
            [layers.Dense(6, activation="relu"), layers.Dense(width)]
        )
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]

    def call(self, inputs):
        hidden = self.norms[0](inputs + self.attention(inputs, inputs))
        return self.norms[1](hidden + self.dense(hidden))


def transformer_classifier(strategy):
    """Word and place embeddings through a block of attention."""
    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        places = layers.Embedding(LENGTH, 4)(tf.range(LENGTH))
        hidden = layers.Embedding(WORDS, 4)(inputs) + places
        hidden = layers.GlobalAveragePooling1D()(Block(4, 2)(hidden))
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(hidden))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(tokens(), labels(2), batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


def sequence_to_sequence(strategy):
    """An encoder's states begin the decoder, which sees the words before."""
    source, target = tokens(), tokens(seed=2)
    with strategy.scope():
        of_encoder = keras.Input((LENGTH,), dtype="int32")
        _, state_h, state_c = layers.LSTM(4, return_state=True)(
            layers.Embedding(WORDS, 3)(of_encoder)
        )
        of_decoder = keras.Input((LENGTH - 1,), dtype="int32")
        hidden = layers.LSTM(4, return_sequences=True)(
            layers.Embedding(WORDS, 3)(of_decoder), initial_state=[state_h, state_c]
        )
        outputs = layers.Dense(WORDS, activation="softmax")(hidden)
        model = keras.Model([of_encoder, of_decoder], outputs)
        model.compile(
            "rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    history = model.fit(
        [source, target[:, :-1]],
        target[:, 1:],
        batch_size=BATCH,
        epochs=2,
        validation_split=0.5,
        verbose=0,
    )
    return results(model, history)


def time_series(strategy):
    """Windows of a series, an LSTM over each, and early stopping."""
    series = numbers(24, 3)
    data = keras.utils.timeseries_dataset_from_array(
        series[:-4], series[4:, :1], sequence_length=4, batch_size=BATCH
    )
    with strategy.scope():
        model = keras.Sequential(
            [layers.LSTM(4, return_sequences=True), layers.LSTM(3), layers.Dense(1)]
        )
        model.compile(
            loss=keras.losses.MeanSquaredError(),
            optimizer=keras.optimizers.Adam(),
            metrics=[keras.metrics.MeanAbsoluteError()],
        )
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, mode="min")
    history = model.fit(
        data, epochs=2, validation_data=data, callbacks=[stopping], verbose=0
    )
    return results(model, history)


def speech_commands(strategy):
    """Spectrograms from the pipeline, and statistics of a layer that was adapted."""
    waves = numbers(len(labels()), 64)
    data = batches(waves, labels(4))
    data = data.map(
        lambda wave, label: (
            tf.abs(tf.signal.stft(wave, frame_length=16, frame_step=8))[..., None],
            label,
        )
    )
    with strategy.scope():
        norm = layers.Normalization()
        norm.adapt(data.map(lambda spectrogram, label: spectrogram))
        model = keras.Sequential(
            [
                norm,
                layers.Conv2D(3, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history)
