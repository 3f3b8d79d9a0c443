"""Training in float64 is as exact as on one device, whatever weighs the gradients."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import replicator
from tests.replicator.conftest import make


@pytest.fixture(autouse=True)
def _float64():
    for dtype in ("float64", "float32"):
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        if dtype == "float64":
            yield


@settings(max_examples=8, deadline=None)
@given(
    case=st.sampled_from([("in_graph", 2), ("in_graph", 4), ("in_graph_devices", 2)]),
    num_examples=st.integers(5, 12),
    batch_size=st.integers(4, 7),
    weighs=st.booleans(),
)
def test_fit_is_as_exact_as_on_one_device(case, num_examples, batch_size, weighs):
    """Batches that replicas do not share evenly, with weights of examples or not."""
    rng = np.random.default_rng(num_examples)
    x, y = rng.normal(size=(num_examples, 3)), rng.normal(size=(num_examples, 1))
    weights = rng.uniform(0.1, 2.0, num_examples) if weighs else None

    def fitted(repl):
        with repl.scope() if repl else contextlib.nullcontext():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.set_weights([np.full((3, 1), 0.1), np.zeros(1)])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            model.compile(optimizer, "mse", metrics=["mae"])
        history = model.fit(
            x,
            y,
            batch_size=batch_size,
            sample_weight=weights,
            epochs=2,
            shuffle=False,
            verbose=0,
        ).history
        return [*model.get_weights(), history["loss"], history["mae"]]

    for several, one in zip(fitted(make(*case)), fitted(None), strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-12, atol=1e-13)


@settings(max_examples=6, deadline=None)
@given(
    options=st.fixed_dictionaries(
        {"loss_scale": st.none() | st.floats(0.1, 1e4)},
        optional={
            "accumulation_steps": st.just(3),
            "global_clipnorm": st.just(0.7),
        },
    ),
    num_replicas=st.integers(1, 4),
)
def test_options_of_an_optimizer_are_exact(options, num_replicas):
    """A scale of the loss, and averages over calls, that float32 does not have."""
    repl = make("single", 1) if num_replicas == 1 else make("in_graph", num_replicas)
    grads = np.random.default_rng(0).normal(size=(3, num_replicas, 4))
    with repl.context():
        variable = tf.Variable(np.zeros(4))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), **options)
        optimizer.build([variable])

    def step(grad):
        scale = optimizer.scale_loss(tf.constant(1.0, tf.float64))
        optimizer.apply_gradients([(grad * scale, variable)])

    for given_grads in grads:
        repl.run(step, replicator.PerReplica(list(map(tf.constant, given_grads))))

    means = grads.mean(axis=1)
    if "accumulation_steps" in options:
        means = means.mean(axis=0, keepdims=True)
    limit = options.get("global_clipnorm", np.inf)
    expected = -sum(m * min(1, limit / np.linalg.norm(m)) for m in means)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-13, atol=1e-14)
