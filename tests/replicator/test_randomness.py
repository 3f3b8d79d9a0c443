"""Replicas draw different, reproducible random streams, whatever draws them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator


def _op_level(_repl):
    return lambda: tf.random.uniform([4])


def _nested_function(_repl):
    @tf.function
    def draw():
        return tf.random.normal([4])

    return draw


def _loop_body(_repl):
    def step():
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x + tf.random.uniform([4])),
            (0, tf.zeros([4])),
        )[1]

    return step


def _keras_dropout(repl):
    with repl.context():
        layer = keras.layers.Dropout(0.5, seed=3)
    return lambda: layer(tf.ones([64]), training=True)


def _generator(repl):
    with repl.context():
        generator = tf.random.Generator.from_seed(5)
    return lambda: generator.uniform([4])


SOURCES = {
    "op": _op_level,
    "nested_function": _nested_function,
    "loop_body": _loop_body,
    "keras_dropout": _keras_dropout,
    "generator": _generator,
}


def _draw(repl, source, *, num_steps=3):
    tf.random.set_seed(11)
    step = SOURCES[source](repl)
    return [[v.numpy() for v in repl.run(step)] for _ in range(num_steps)]


@pytest.mark.parametrize("source", SOURCES)
def test_replicas_and_steps_draw_differently(in_graph, source):
    """No two replicas and no two steps see the same numbers."""
    draws = [tuple(v.ravel()) for step in _draw(in_graph, source) for v in step]

    assert len(draws) == len(set(draws))


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_seed_draws_the_same(source):
    """Two programs with one seed give the same streams, replica by replica."""

    def make():
        return replicator.create("in_graph", num_replicas=2)

    np.testing.assert_array_equal(_draw(make(), source), _draw(make(), source))


@pytest.mark.parametrize("source", ["keras_dropout", "generator"])
def test_replica_0_draws_what_the_single_device_draws(source):
    """Folding replica id 0 into a state leaves it as it is."""
    alone = _draw(replicator.create("single"), source)
    split = _draw(replicator.create("in_graph", num_replicas=2), source)

    np.testing.assert_array_equal(
        [step[0] for step in alone], [step[0] for step in split]
    )


def test_resetting_a_generator_resets_every_replica(in_graph):
    """Setting the user's own generator back repeats all streams."""
    with in_graph.context():
        generator = tf.random.Generator.from_seed(5)

    def step():
        return generator.uniform([4])

    first = [v.numpy() for v in in_graph.run(step)]
    in_graph.run(step)
    generator.reset_from_seed(5)
    again = [v.numpy() for v in in_graph.run(step)]

    np.testing.assert_array_equal(first, again)
