"""``fit`` of tf_keras, which ``make test-communities`` installs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replicator.errors import StrategyError

tf_keras = pytest.importorskip("tf_keras")

X = np.random.RandomState(0).randn(10, 4).astype(np.float32)
Y = np.tanh(X.sum(axis=1, keepdims=True))


class OwnStep(tf_keras.Sequential):
    """A model whose step computes its loss without tf_keras."""

    def train_step(self, data):
        """The loss is the mean over the replica's own examples."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


def _fit(model, repl, optimizer="sgd", **options):
    with repl.scope():
        model = model([tf_keras.layers.Dense(1, kernel_initializer="ones")])
        if repl.num_replicas > 1 and optimizer == "wrapped":
            optimizer = repl.wrap_optimizer(tf_keras.optimizers.SGD(0.01))
        model.compile(optimizer, "mse", **options)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()[0]


def test_a_loss_that_nothing_divides_is_refused_with_its_step(in_graph):
    """tf_keras would sum the gradients, and train twice as fast in silence."""
    with pytest.raises(StrategyError, match=r"train_step .*is not divided .*SGD sums"):
        _fit(OwnStep, in_graph)


def test_a_wrapped_optimizer_averages_such_a_loss(in_graph):
    """As the message says; minimize() averages as well."""
    expected = np.ones([4, 1]) - 0.01 * np.mean(
        2 * X[:8, :, None] * (X[:8].sum(axis=1, keepdims=True) - Y[:8])[:, None], axis=0
    )

    np.testing.assert_allclose(
        _fit(OwnStep, in_graph, "wrapped"), expected, rtol=1e-5, atol=1e-6
    )


def test_run_eagerly_is_refused(in_graph):
    """A step on replicas is traced."""
    with pytest.raises(StrategyError, match="run_eagerly=True"):
        _fit(tf_keras.Sequential, in_graph, run_eagerly=True)
