"""``fit`` of tf_keras, which ``make test-communities`` installs."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.errors import StrategyError

tf_keras = pytest.importorskip("tf_keras")

X = np.random.RandomState(0).randn(8, 4).astype(np.float32)
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


# Of a step by the mean square of eight examples, from ones.
EXPECTED = np.ones([4, 1]) - 0.01 * np.mean(
    2 * X[:, :, None] * (X.sum(axis=1, keepdims=True) - Y)[:, None], axis=0
)


def _fit(model, repl, optimizer="sgd", **options):
    with repl.scope():
        model = model([tf_keras.layers.Dense(1, kernel_initializer="ones")])
        if optimizer == "wrapped":
            optimizer = repl.wrap_optimizer(tf_keras.optimizers.SGD(0.01))
        model.compile(optimizer, "mse", **options)
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()[0]


@pytest.mark.parametrize(
    ("model", "optimizer", "options"),
    [
        (OwnStep, "sgd", {}),
        (OwnStep, "wrapped", {}),
        # The check of a step for sums knows variables of metrics from weights.
        (tf_keras.Sequential, "sgd", {"metrics": ["mae"]}),
    ],
)
def test_a_step_is_that_of_one_device(in_graph, model, optimizer, options):
    """Gradients are averaged, by minimize() too, whoever computes the loss."""
    found = _fit(model, in_graph, optimizer, **options)

    np.testing.assert_allclose(found, EXPECTED, rtol=1e-5, atol=1e-6)


def test_run_eagerly_is_refused(in_graph):
    with pytest.raises(StrategyError, match="run_eagerly=True"):
        _fit(tf_keras.Sequential, in_graph, run_eagerly=True)
