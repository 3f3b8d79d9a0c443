"""Statistics of the global batch in ``fit``: losses of replicas meet in gradients."""

import contextlib

import keras
import numpy as np
import pytest

import replicator

# Weights of replicas are float32, such as 6/5.
TOLERANCE = 1e-6


def _fitted(scope, layer, num_examples, wrapped=lambda optimizer: optimizer):
    """Weights and losses of two epochs, whose last batch is smaller than 16."""
    x = np.random.RandomState(0).randn(num_examples, 4)
    y = x.sum(axis=1, keepdims=True) ** 2
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="float64"),
                keras.layers.Dense(3, use_bias=False, dtype="float64"),
                layer(),
                keras.layers.Dense(1, dtype="float64"),
            ]
        )
        model.compile(wrapped(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
    fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    return [*model.fit(x, y, **fit).history["loss"], *model.get_weights()]


LAYERS = {
    "keras": lambda: keras.layers.BatchNormalization(
        synchronized=True, dtype="float64"
    ),
    "own": lambda: replicator.CrossReplicaBatchNormalization(dtype="float64"),
}


@pytest.mark.parametrize(
    ("layer", "num_examples", "is_wrapped"),
    [
        ("keras", 21, False),
        pytest.param("own", 21, True, marks=pytest.mark.full),
        ("keras", 17, False),
    ],
)
def test_a_smaller_last_batch_has_the_gradient_of_one_device(
    layer, num_examples, is_wrapped
):
    """5 examples over two replicas, or 1, which leaves none to a replica.

    The full run has our own layer and a wrapped optimizer. Gradients that went through
    the statistics had the weights of the wrong replica.
    """
    repl = replicator.create("in_graph", num_replicas=2)
    wrapped = repl.wrap_optimizer if is_wrapped else lambda optimizer: optimizer

    alone = _fitted(
        contextlib.nullcontext(),
        lambda: keras.layers.BatchNormalization(dtype="float64"),
        num_examples,
    )
    both = _fitted(repl.scope(), LAYERS[layer], num_examples, wrapped)

    for one, two in zip(alone, both, strict=True):
        np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=TOLERANCE)
