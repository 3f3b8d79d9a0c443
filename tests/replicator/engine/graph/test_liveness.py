"""What is recomputed has the same numbers, or is refused.

Who computes the update of a variable that has an owner is seen in
``tests/replicator/optimizer/test_sharded_update.py``.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.errors import RecomputationError


def _pass_both_ways(function, *more):
    """A step: where the function keeps a value, and where its gradient does."""

    def step():
        x = tf.ones([64])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, *more)
        return y > 0, tape.gradient(y, x) > 0

    return step


def _stream():
    return lambda x: tf.nn.dropout(x, 0.5)


def _keras_layer():
    layer = keras.layers.Dropout(0.5)
    return lambda x: layer(x, training=True)


@pytest.mark.parametrize("make", [_stream, _keras_layer])
@pytest.mark.parametrize("wrap", [tf.recompute_grad, keras.remat])
def test_a_dropout_that_is_recomputed_is_refused(wrap, make):
    """Its masks would agree in half of the places; the message names the line."""
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        function = make()

    with pytest.raises(
        RecomputationError, match=r"numbers at .*test_liveness\.py:\d+: .*stateless_"
    ):
        repl.run(_pass_both_ways(wrap(function)))


def test_what_the_message_advises_has_one_mask():
    """The seed of a stateless function is passed to the function."""
    repl = replicator.create("in_graph", num_replicas=2)

    def mask(x, seed):
        return x * tf.cast(tf.random.stateless_uniform([64], seed) < 0.5, x.dtype)

    seed = tf.constant([1.0, 2.0])
    function = tf.recompute_grad(lambda x, s: mask(x, tf.cast(s, tf.int32)))
    forward, backward = repl.run(_pass_both_ways(function, seed))

    np.testing.assert_array_equal(forward[0], backward[0])
    assert 0 < np.count_nonzero(forward[0]) < 64
