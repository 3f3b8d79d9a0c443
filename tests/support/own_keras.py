"""A model and data of somebody's, as ``keras_workload`` takes them."""

import keras
import tensorflow as tf

from workloads.keras_fit.own_model import keras_workload


def model():
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


def bare():
    """Without ``compile``."""
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def inputs_only():
    """Without targets."""
    return tf.data.Dataset.from_tensor_slices(tf.zeros([4, 6]))


WORKLOAD = keras_workload("own", model, data, per_replica_batch_size=4)
