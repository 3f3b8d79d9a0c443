"""Optimizers of Keras that accumulate gradients by themselves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator.errors import StrategyError

X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def _fit(model, strategy):
    del strategy
    model.fit(X, Y, verbose=0)


def _batch(model, strategy):
    del strategy
    model.train_on_batch(X, Y)


def _loop(model, strategy):
    weights, optimizer = model.trainable_variables, model.optimizer

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    strategy.run(step)


@pytest.mark.parametrize(
    ("name", "train", "kind"),
    [
        ("SGD", _fit, keras.Sequential),
        ("Adam", _batch, keras.Sequential),
        ("Lion", _loop, keras.Sequential),
        ("Adafactor", _fit, OwnStep),
    ],
)
def test_the_message_names_the_option_that_does(in_graph, name, train, kind):
    """Keras joins gradients in a branch, where replicas cannot communicate."""
    with in_graph.scope():
        model = kind([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = getattr(keras.optimizers, name)(gradient_accumulation_steps=3)
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)

    message = (
        rf"{name}\(gradient_accumulation_steps=3\).*write "
        rf"repl.wrap_optimizer\({name}\(...\), accumulation_steps=3\)"
    )
    with pytest.raises(StrategyError, match=message):
        train(model, in_graph.as_strategy())


@pytest.mark.parametrize("wrap", ["of Keras", "of the wrapper"])
def test_what_the_message_says_trains_as_one_device(in_graph, wrap):
    """By Keras' own option below ``wrap_optimizer``, or by the wrapper's."""

    def kernel(repl):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        if repl is None:
            optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        elif wrap == "of Keras":
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
            )
        else:
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1), accumulation_steps=2
            )
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()[0]

    with in_graph.scope():
        found = kernel(in_graph)
    np.testing.assert_allclose(found, kernel(None), rtol=1e-5)
