"""What replicas draw beside one device, and after a generator was reset."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator


def _keras_dropout(repl):
    with repl.context():
        layer = keras.layers.Dropout(0.5, seed=3)
    return lambda: layer(tf.ones([64]), training=True)


def _generator(repl):
    with repl.context():
        generator = tf.random.Generator.from_seed(5)
    return lambda: generator.uniform([4])


SOURCES = {
    "keras_dropout": _keras_dropout,
    "generator": _generator,
}


def _draw(repl, source, *, num_steps=3):
    tf.random.set_seed(11)
    step = SOURCES[source](repl)
    return [[v.numpy() for v in repl.run(step)] for _ in range(num_steps)]


@pytest.mark.parametrize("source", SOURCES)
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
