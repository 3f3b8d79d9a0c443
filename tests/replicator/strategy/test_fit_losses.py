"""Losses of ``fit`` that are functions of what the whole batch makes.

The mean over replicas of such a function is not that of one device.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.errors import StrategyError

NUM_EXAMPLES = 16
_NUMBERS = np.random.RandomState(0)
X = _NUMBERS.randn(NUM_EXAMPLES, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def _mean(value):
    """The mean over all replicas, or that of one device."""
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce("mean", value) if replica else value


def root(y, y_pred):
    """RMSE."""
    return tf.sqrt(tf.reduce_mean(tf.square(y - y_pred)))  # here


def root_of_all(y, y_pred):
    """RMSE, as the message says."""
    return tf.sqrt(_mean(tf.reduce_mean(tf.square(y - y_pred))))


def bias(y, y_pred):
    """A square of which only the gradient is used."""
    return tf.square(tf.reduce_mean(y_pred) - tf.reduce_mean(y))  # here


def spread(y, y_pred):
    """A mean within another."""
    return tf.reduce_mean(tf.abs(y - y_pred)) + tf.math.reduce_std(y_pred)


def logarithm(y, y_pred):
    """A function whose gradient divides."""
    return tf.math.log(tf.reduce_mean(tf.abs(y - y_pred)) + 1.0)  # here


def largest(y, y_pred):
    """One example of all."""
    return tf.reduce_max(tf.square(y - y_pred))  # here


def focal(y, y_pred):
    """The mean of a batch times a function of it."""
    mean = keras.losses.MeanSquaredError()(y, y_pred)
    return mean * (1.0 - tf.exp(-mean))  # here


def pairs(y, y_pred):
    """The difference of every two examples."""
    return tf.reduce_mean(tf.abs(y_pred - tf.transpose(y_pred)))  # here


def pairs_of_rows(y, y_pred):
    """The same by a new dimension."""
    return tf.reduce_mean(tf.abs(y_pred[:, None] - y_pred[None]))  # here


def root_by_column(y, y_pred):
    """RMSE of each output."""
    squares = tf.reduce_mean(tf.square(y - y_pred), axis=0)
    return tf.reduce_mean(tf.sqrt(squares))  # here


def correlated(y, y_pred):
    """Products of columns, as redundancy reduction has them (Zbontar et al. 2021)."""
    products = tf.matmul(y_pred, y, transpose_a=True) / 8.0
    return tf.reduce_mean(tf.square(products - 1.0))  # here


def spread_by_column(y, y_pred):
    """A hinge on the deviation of each output (Bardes et al. 2022)."""
    deviation = tf.math.reduce_std(y_pred, axis=0)
    return tf.reduce_mean(tf.square(y - y_pred)) + tf.reduce_sum(
        tf.nn.relu(1 - deviation)
    )


def softmax_of_the_batch(y, y_pred):
    """Every example against all others."""
    return -tf.reduce_mean(y * tf.nn.log_softmax(y_pred, axis=0))  # here


def sorted_batch(y, y_pred):
    """The distance of two samples, by order (Wasserstein)."""
    in_order = tf.sort(y_pred, axis=0)  # here
    return tf.reduce_mean(tf.square(in_order - tf.sort(y, axis=0)))


def means_by_column(y, y_pred):
    """A mean by column that is only multiplied and added."""
    return tf.reduce_sum(0.5 * tf.reduce_mean(tf.abs(y - y_pred), axis=0))


def root_by_column_of_all(y, y_pred):
    """As the message says."""
    square = _mean(tf.reduce_mean(tf.square(y - y_pred), axis=0))
    return tf.reduce_mean(tf.sqrt(square))


def sum_of_means(y, y_pred):
    """What is linear in means is a mean."""
    per_example = tf.abs(y - y_pred)[:, 0]
    penalty = 0.1 * tf.reduce_mean(tf.square(y_pred))
    return per_example + penalty - tf.reduce_mean(y_pred) / 8.0


def _trained(loss, scope):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def _two():
    return replicator.create("in_graph", num_replicas=2).scope()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (root, "computes Sqrt of a number that all examples"),
        (bias, "computes Square of a number"),
        (spread, "of numbers that all examples of its batch make"),
        (logarithm, "computes Log of a number"),
        (largest, "computes Max of a number"),
        (focal, "of a number that all examples of its batch make"),
        (root_by_column, "computes Sqrt of numbers"),
        (correlated, "computes Square of numbers"),
        (spread_by_column, "of numbers that all examples of its batch make"),
        (softmax_of_the_batch, "compares the examples of its batch"),
        (sorted_batch, "compares the examples of its batch"),
        (pairs, "compares the examples of its batch"),
        (pairs_of_rows, "compares the examples of its batch"),
    ],
)
def test_a_function_of_what_the_batch_makes_is_refused_with_its_line(loss, message):
    """It trained differently without a word."""
    with pytest.raises(StrategyError, match=message) as error:
        _trained(loss, _two())

    if loss not in (spread, spread_by_column, focal):
        assert "# here" in str(error.value)


@pytest.mark.parametrize(
    "loss", [root_of_all, root_by_column_of_all, sum_of_means, means_by_column]
)
def test_means_and_functions_of_those_of_all_replicas_train_as_on_one_device(loss):
    """What the message says to write, and what is a mean."""
    alone = _trained(loss, contextlib.nullcontext())
    both = _trained(loss, _two())

    for one, two in zip(alone, both, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


def test_batch_norm_of_each_replica_is_said():
    """Training goes on as under ``tf.distribute``, but one device has other numbers."""
    norms = keras.layers.BatchNormalization, replicator.CrossReplicaBatchNormalization
    for norm in norms:
        with _two():
            model = keras.Sequential([keras.Input((4,)), norm(name="norm")])
            model.compile("sgd", "mse")
        seen = (
            pytest.warns(UserWarning, match=r"'norm' of Sequential .*synchronized=True")
            if norm is norms[0]
            else contextlib.nullcontext()
        )
        with seen:
            model.fit(X, X, verbose=0)
