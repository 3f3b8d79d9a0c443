"""What replicas draw beside one device, and after a generator was reset."""

import gc
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator


def test_resetting_a_generator_resets_every_replica(in_graph):
    with in_graph.context():
        generator = tf.random.Generator.from_seed(5)

    def step():
        return generator.uniform([4])

    first = [v.numpy() for v in in_graph.run(step)]
    in_graph.run(step)
    generator.reset_from_seed(5)
    again = [v.numpy() for v in in_graph.run(step)]

    np.testing.assert_array_equal(first, again)


def _drawn(backend, num_replicas):
    keras.utils.set_random_seed(7)
    repl = replicator.create(backend, num_replicas=num_replicas)
    with repl.context():
        layer = keras.layers.Dropout(0.5, seed=3)
        generator = tf.random.Generator.from_seed(5)

    def step():
        return {
            "layer with a seed": layer(tf.ones([64]), training=True),
            "generator": generator.uniform([4]),
            "normal": keras.random.normal([8]),
            "dropout": keras.random.dropout(tf.ones([64]), 0.5),
            "shuffle": keras.random.shuffle(tf.range(64)),
            "sum": keras.ops.sum(keras.random.uniform([8])),
        }

    found = []
    for _ in range(3):
        found.append(repl.run(step))
        generator.uniform([1])  # outside, which all replicas notice
    return found


def test_replica_0_draws_what_one_device_draws():
    keras.utils.set_random_seed(7)
    outside = keras.random.normal([8]).numpy()
    alone, split = _drawn("single", 1), _drawn("in_graph", 2)

    np.testing.assert_array_equal(outside, alone[0]["normal"][0])
    for one, both in zip(alone, split, strict=True):
        for name, (value,) in one.items():
            np.testing.assert_array_equal(value, both[name][0])
            assert not np.array_equal(value, both[name][1])


def test_steps_and_programs_share_the_generator_of_keras(in_graph):
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
    def step():
        return keras.random.normal([8])

    before = repl_once.run(step)[0].numpy()
    keras.utils.set_random_seed(3)
    gc.collect()
    after = repl_once.run(step)[0].numpy()

    assert before.tobytes() != after.tobytes()


def test_a_step_that_draws_nothing_makes_no_generator(repl_once):
    keras.utils.set_random_seed(3)
    state = random.getstate()

    repl_once.run(lambda: tf.constant(1.0))

    assert state == random.getstate()


def test_a_step_that_fails_leaves_the_generator_as_keras_would(in_graph):
    def failing():
        keras.random.normal([2])
        raise ValueError("mine")

    keras.utils.set_random_seed(3)
    with pytest.raises(ValueError, match="mine"):
        in_graph.run(failing)

    state = random.getstate()
    in_graph.run(lambda: keras.random.normal([2]))
    assert state == random.getstate()  # no other one was made
