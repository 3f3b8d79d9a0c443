"""What replicas draw beside one device, and after a generator was reset."""

import gc
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import errors
from replicator._tf import compat as _tf_compat


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


def _unseeded(repl):
    """A step that draws from the generator that Keras keeps."""

    def step():
        return {
            "normal": keras.random.normal([8]),
            "dropout": keras.random.dropout(tf.ones([64]), 0.5),
            "shuffle": keras.random.shuffle(tf.range(64)),
            "layer": keras.ops.sum(keras.random.uniform([8])),
        }

    return lambda: [
        {name: value[r].numpy() for name, value in out.items()}
        for out in [repl.run(step) for _ in range(3)]
        for r in range(repl.num_local_replicas)
    ]


def test_replica_0_draws_unseeded_what_one_device_draws():
    """And what Keras draws outside steps with the same seed."""
    keras.utils.set_random_seed(7)
    outside = keras.random.normal([8]).numpy()
    keras.utils.set_random_seed(7)
    alone = _unseeded(replicator.create("single"))()
    keras.utils.set_random_seed(7)
    split = _unseeded(replicator.create("in_graph", num_replicas=2))()

    np.testing.assert_array_equal(outside, alone[0]["normal"])
    for mine, other in zip(alone, split[::2], strict=True):
        for name in mine:
            np.testing.assert_array_equal(mine[name], other[name])


def test_steps_and_programs_share_the_generator_of_keras(in_graph):
    """Two step functions and Keras outside do not draw the same numbers."""

    def one():
        return keras.random.normal([8])

    def other():
        return keras.random.normal([8])

    drawn = [keras.random.normal([8]).numpy()]
    for step in (one, other, one):
        drawn += [value.numpy() for value in in_graph.run(step)]
    drawn.append(keras.random.normal([8]).numpy())

    assert len(drawn) == len({value.tobytes() for value in drawn})


def test_a_step_keeps_its_generator_when_keras_forgets_it(repl_once):
    """Setting a seed makes Keras drop it; the traced step continues."""

    def step():
        return keras.random.normal([8])

    before = repl_once.run(step)[0].numpy()
    keras.utils.set_random_seed(3)
    gc.collect()
    after = repl_once.run(step)[0].numpy()

    assert before.tobytes() != after.tobytes()


def test_a_step_that_draws_nothing_makes_no_generator(repl_once):
    """Python's own random numbers, of which Keras takes its seed, stay untouched."""
    keras.utils.set_random_seed(3)
    state = random.getstate()

    repl_once.run(lambda: tf.constant(1.0))

    assert state == random.getstate()
    assert _tf_compat.global_seed_generator() is None


def test_a_generator_of_the_step_itself_is_still_refused(repl_once):
    """Only Keras' global one is made outside; others are variables of the user."""

    def step():
        return keras.random.normal([2], seed=keras.random.SeedGenerator(1))

    with pytest.raises(
        errors.CreateVariableInStepError,
        match=r"created a variable \('seed_generator_st",
    ):
        repl_once.run(step)


def test_a_generator_that_was_made_for_a_failing_step_is_there_for_the_next(in_graph):
    """An error while tracing leaves Keras as it would be without the step."""

    def failing():
        keras.random.normal([2])
        raise ValueError("mine")

    keras.utils.set_random_seed(3)
    with pytest.raises(ValueError, match="mine"):
        in_graph.run(failing)

    made = _tf_compat.global_seed_generator()
    assert isinstance(made, keras.random.SeedGenerator)
    in_graph.run(lambda: keras.random.normal([2]))
    assert made is _tf_compat.global_seed_generator()
