"""Two weights and a wrapped optimizer."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf


@pytest.fixture
def wrapped():
    """Makes weights of two numbers each, and an optimizer with a rate of 0.5."""

    def make(repl, kind=keras.optimizers.SGD, **options):
        with repl.context():
            weights = [
                tf.Variable([1.0, 2.0], name="first"),
                tf.Variable([3.0, 4.0]),
            ]
            optimizer = repl.wrap_optimizer(kind(0.5), **options)
        return weights, optimizer

    return make
