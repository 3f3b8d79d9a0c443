"""Weights and wrapped optimizers."""

import keras
import pytest
import tensorflow as tf

import replicator


@pytest.fixture
def wrapped():
    """Makes weights of two numbers each, and an optimizer with a rate of 0.5."""

    def make(repl, kind=keras.optimizers.SGD, **options):
        with repl.context():
            weights = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0, 4.0])]
            optimizer = repl.wrap_optimizer(kind(0.5), **options)
        return weights, optimizer

    return make


@pytest.fixture
def fed():
    """Makes a weight of 1.0 whose gradient on each replica is what it is fed."""

    def make(repl, **options):
        with repl.context():
            weight = tf.Variable(1.0)
            optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), **options)
            optimizer.build([weight])

        def step(factor):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(weight * factor)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        def run(*factors):
            values = [tf.constant(factor) for factor in factors]
            repl.run(step, replicator.PerReplica(values))
            return float(weight.numpy())

        return run, weight, optimizer

    return make
