"""``fit`` of tf_keras, which ``make test-communities`` installs."""

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


@pytest.mark.parametrize("optimizer", ["sgd", "wrapped"])
def test_a_loss_of_the_step_itself_is_that_of_one_device(in_graph, optimizer):
    """Gradients are averaged, by minimize() too, whoever computes the loss."""
    expected = np.ones([4, 1]) - 0.01 * np.mean(
        2 * X[:8, :, None] * (X[:8].sum(axis=1, keepdims=True) - Y[:8])[:, None], axis=0
    )

    np.testing.assert_allclose(
        _fit(OwnStep, in_graph, optimizer), expected, rtol=1e-5, atol=1e-6
    )


def test_run_eagerly_is_refused(in_graph):
    """A step on replicas is traced."""
    with pytest.raises(StrategyError, match="run_eagerly=True"):
        _fit(tf_keras.Sequential, in_graph, run_eagerly=True)


def test_metrics_of_tf_keras_hold_plain_variables(in_graph):
    """The check of a step for sums knows them from weights, as in Keras 3."""
    alone = np.ones([4, 1]) - 0.01 * np.mean(
        2 * X[:8, :, None] * (X[:8].sum(axis=1, keepdims=True) - Y[:8])[:, None], axis=0
    )

    found = _fit(tf_keras.Sequential, in_graph, metrics=["mae"])

    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
