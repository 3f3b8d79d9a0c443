"""TensorFlow Datasets: a builder's splits through ``tf.data`` into ``fit``."""

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

from communities.data import weights_of

NUM_EXAMPLES = 50


def train(strategy):
    with tfds.testing.mock_data(num_examples=NUM_EXAMPLES):
        builder = tfds.builder("mnist")
        train_data, test_data = builder.as_dataset(
            split=["train", "test"], as_supervised=True
        )

    def scaled(image, label):
        return tf.cast(image, tf.float32) / 255.0, label

    batches = train_data.map(scaled).cache()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.AveragePooling2D(4),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = model.fit(
        batches.batch(16).prefetch(tf.data.AUTOTUNE),
        epochs=2,
        validation_data=test_data.map(scaled).batch(16),
        verbose=0,
    )
    return [*history.history.values(), *weights_of(model)]
