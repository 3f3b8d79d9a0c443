"""TensorFlow's warning that a function is traced again and again: here it is untrue."""

import logging

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.step.traced_once import traced_once


@pytest.fixture
def warnings_of_tensorflow():
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = tf.get_logger()
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def _train(repl, num_functions=3):
    """Ordinary steps with every kind of variable, each with two numbers of steps."""
    with repl.context():
        weight = tf.Variable(1.0)
        count = tf.Variable(
            0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(3).repeat())

    def make_step(index):
        def step(x):
            count.assign_add(tf.cast(x, tf.float32))
            optimizer.apply([weight * index], [weight])
            return x

        return step

    for index in range(num_functions):
        step = make_step(float(index))
        for num_steps in (1, 4):
            repl.run(step, inputs, num_steps=num_steps)


def test_ordinary_steps_make_tensorflow_say_nothing(repl_once, warnings_of_tensorflow):
    """Three functions of two numbers of steps were six programs, each traced once."""
    _train(repl_once)

    assert [] == [text for text in warnings_of_tensorflow if "retracing" in text]


def test_the_warning_is_there_to_be_said(warnings_of_tensorflow):
    """Without functions of their own the same six programs make TensorFlow say it."""

    def make():
        def function():
            return tf.constant(1)

        return function

    for _ in range(6):
        traced_once(make())()
    assert [] == [text for text in warnings_of_tensorflow if "retracing" in text]
    for _ in range(6):
        tf.function(make())()

    assert [text for text in warnings_of_tensorflow if "retracing" in text]


def test_a_function_that_is_really_traced_again_is_still_reported(
    warnings_of_tensorflow,
):
    """One function for ever new shapes."""
    function = traced_once(lambda x: x)

    for size in range(8):
        function(tf.zeros([size]))

    assert [text for text in warnings_of_tensorflow if "retracing" in text]


def test_methods_and_defaults_are_those_of_the_function():
    """Nothing but the name of the code differs."""

    class Counter:
        def __init__(self):
            self.step = 2

        def add(self, x, y=1, *, z=3):
            return x + y * self.step + z

    assert 15 == int(traced_once(Counter().add)(tf.constant(10)))


def test_replicators_of_one_process_share_nothing(warnings_of_tensorflow):
    """Programs of several replicators are counted apart as well."""
    for num_replicas in (1, 2, 4):
        _train(replicator.create("in_graph", num_replicas=num_replicas), 2)

    assert [] == [text for text in warnings_of_tensorflow if "retracing" in text]
