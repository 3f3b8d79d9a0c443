"""The gradient of a sum over examples is told from that of a mean, in the graph."""

from __future__ import annotations

import pytest
import tensorflow as tf

from replicator.strategy import sums

NUM_EXAMPLES = 4


def _slopes(weights, x):
    """The gradient of a sum, with regard to the examples."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.matmul(x, weights) ** 2
    return tape.gradient(outputs, x)


def _penalty(weights, x):
    """Of each example, how far the norm of its slopes is from 1."""
    return (tf.norm(_slopes(weights, x), axis=1) - 1.0) ** 2


def _gradient_of(loss_fn):
    def gradient(weights, x):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = loss_fn(weights, x)
        return tape.gradient(loss, weights)

    return gradient


def _mean(weights, x):
    return tf.reduce_mean(tf.matmul(x, weights))


def _mean_and(weights, x):
    outputs = tf.matmul(x, weights)
    return tf.reduce_mean(outputs**2) + tf.reduce_sum(outputs)


@tf.custom_gradient
def _halved(x):
    """Its gradient has no scope of a tape."""
    return x * 1.0, lambda upstream: upstream / 2.0


def _direct_too(weights, x):
    """A gradient that is updated with, and that a loss is made of as well."""
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = tf.matmul(x, weights) ** 2
        first = tape.gradient(outputs, weights)
        loss = tf.reduce_mean(first**2)
    return outer.gradient(loss, weights) + first


def _two_of_one_tape(weights, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(weights)
        outputs = tf.matmul(x, weights)
        mean = tf.reduce_mean(outputs)
    return tape.gradient(mean, weights) + tape.gradient(outputs, weights)


GRADIENTS = {
    "a mean": (_gradient_of(_mean), False),
    "no reduction": (_gradient_of(lambda w, x: tf.matmul(x, w)), True),
    "a sum": (_gradient_of(lambda w, x: tf.reduce_sum(tf.matmul(x, w))), True),
    "a sum of powers": (
        _gradient_of(lambda w, x: tf.reduce_sum(tf.matmul(x, w) ** 2)),
        True,
    ),
    "a sum of powers over the number of examples": (
        _gradient_of(
            lambda w, x: tf.reduce_sum(tf.matmul(x, w) ** 2) / float(NUM_EXAMPLES)
        ),
        False,
    ),
    "a sum over another number": (
        _gradient_of(lambda w, x: tf.reduce_sum(tf.matmul(x, w) ** 2) / 8.0),
        True,
    ),
    "a sum times one over the number of examples": (
        _gradient_of(lambda w, x: tf.reduce_sum(tf.matmul(x, w) * 0.25)),
        False,
    ),
    "a mean over a number of one's own": (
        _gradient_of(lambda w, x: tf.reduce_mean(tf.matmul(x, w) ** 2) / 0.08),
        False,
    ),
    "a sum of means": (
        _gradient_of(lambda w, x: tf.reduce_sum([_mean(w, x), _mean(w**2, x)])),
        False,
    ),
    "a sum of a single number": (
        _gradient_of(lambda w, x: tf.reduce_sum(_mean(w, x))),
        False,
    ),
    "a mean and a sum of the same": (_gradient_of(_mean_and), True),
    "a mean, and a sum over weights": (
        _gradient_of(lambda w, x: _mean(w, x) + tf.reduce_sum(w**2)),
        False,
    ),
    "a mean of a penalty on slopes": (
        _gradient_of(lambda w, x: tf.reduce_mean(_penalty(w, x))),
        False,
    ),
    "a mean of a penalty behind a gradient of one's own": (
        _gradient_of(lambda w, x: tf.reduce_mean(_halved(_penalty(w, _halved(x))))),
        False,
    ),
    "a penalty on slopes that nothing reduces": (_gradient_of(_penalty), True),
    "a sum of a penalty on slopes": (
        _gradient_of(lambda w, x: tf.reduce_sum(_penalty(w, x))),
        True,
    ),
    "a sum, and a mean of a penalty on slopes": (
        _gradient_of(
            lambda w, x: tf.reduce_mean(_penalty(w, x)) + tf.reduce_sum(tf.matmul(x, w))
        ),
        True,
    ),
    "a sum behind a gradient of one's own": (
        _gradient_of(lambda w, x: _halved(tf.matmul(x, w))),
        True,
    ),
    "a gradient in the loss and in the update": (_direct_too, True),
    "a mean and no reduction, of one tape": (_two_of_one_tape, True),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_only_gradients_that_are_updated_with_count(name):
    """Those that a loss is made of may be of sums: one device has the same."""
    gradient, is_sum = GRADIENTS[name]
    with tf.Graph().as_default() as graph:
        weights = tf.ones((3, 1))
        x = tf.compat.v1.placeholder(tf.float32, (NUM_EXAMPLES, 3))
        update = gradient(weights, x)

    def is_of_examples(tensor):
        return tensor is x or any(is_of_examples(one) for one in tensor.op.inputs)

    found = sums.find(
        [update.op],
        lambda op: [one.op for one in op.inputs],
        is_of_examples,
        graph.get_operations(),
    )

    assert bool(list(found)) is is_sum
