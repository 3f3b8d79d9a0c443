"""Small compiled models: of images by a file's name, and of the user's own data."""

import keras
import tensorflow as tf

from workloads import keras_workload


def small():
    """A convolution, batch norm and dropout on images of 32 pixels."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(4, 3, strides=4, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def not_compiled():
    """Without ``compile``."""
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten()])


def of_larger_images():
    """Of 64 pixels."""
    model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Flatten()])
    model.compile("sgd", "mse")
    return model


def own_model():
    """Two layers, batch norm and dropout."""
    made = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    made.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return made


def data():
    """Inputs and targets of 32 examples."""
    x = tf.random.stateless_normal([32, 6], [0, 1])
    return tf.data.Dataset.from_tensor_slices((x, x[:, :3]))


def inputs_only():
    """Without targets."""
    return tf.data.Dataset.from_tensor_slices(tf.zeros([4, 6]))


WORKLOAD = keras_workload("own", own_model, data, per_replica_batch_size=4)
