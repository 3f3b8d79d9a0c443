"""Every optimizer of Keras trains on replicas as it does on one device."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import PerReplica, create

NUM_STEPS = 3
# A stock strategy, one copy of the variables, a copy for each of two replicas.
BACKENDS = {
    "tf_mirrored": {"devices": ["CPU:0", "CPU:1"]},
    "shared": {},
    "copies": {"devices": ["CPU:0", "CPU:1"], "variable_placement": "mirrored"},
}
NAMES = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind is not keras.optimizers.Optimizer
)


def _weights(name):
    """A kernel and a bias of their own for each optimizer."""
    rng = np.random.default_rng(len(name))
    shapes = {"kernel": (4, 3), "bias": (3,)}
    return [
        keras.Variable(rng.normal(size=shape).astype(np.float32), name=f"{name}_{key}")
        for key, shape in shapes.items()
    ]


def _optimizer(name):
    if name == "LossScaleOptimizer":
        return keras.optimizers.LossScaleOptimizer(_optimizer("Adam"))
    if name == "MultiOptimizer":
        parts = keras.optimizers.OptimizerMap(_optimizer("SGD"))
        parts[".*kernel"] = _optimizer("Adam")
        return keras.optimizers.MultiOptimizer(parts)
    return getattr(keras.optimizers, name)(learning_rate=0.02)


def _gradients(weights, batch):
    inputs, targets = batch
    with tf.GradientTape() as tape:
        outputs = tf.matmul(inputs, weights[0].value) + weights[1].value
        loss = tf.reduce_mean((tf.tanh(outputs) - targets) ** 2)
    return tape.gradient(loss, [w.value for w in weights])


def _batches(num_replicas):
    rng = np.random.default_rng(9)
    return [
        (
            np.split(rng.normal(size=(8, 4)).astype(np.float32), num_replicas),
            np.split(rng.normal(size=(8, 3)).astype(np.float32), num_replicas),
        )
        for _ in range(NUM_STEPS)
    ]


@functools.cache
def _alone(name):
    weights, optimizer = _weights(name), _optimizer(name)
    for inputs, targets in _batches(1):
        grads = _gradients(weights, (inputs[0], targets[0]))
        optimizer.apply(grads, weights)
    return [np.asarray(w) for w in weights]


def test_there_are_optimizers_to_try():
    """The list is found in Keras, so that a new one is tried too."""
    assert {"SGD", "Adam", "Muon", "Lamb", "Ftrl"} <= set(NAMES)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        pytest.param("tf_mirrored", {}, marks=pytest.mark.full),
        ("shared", {}),
        pytest.param("copies", {}, marks=pytest.mark.full),
        pytest.param("copies", {"sharded_update": True}, marks=pytest.mark.full),
    ],
)
def test_all_optimizers_in_one_step(backend, options):
    """Three steps on replicas equal three steps of Keras on the joined batch.

    The full run also has a stock strategy, which hands Keras the gradients whatever the
    optimizer is (conformance cases train with eight on one), and copies that all
    replicas update, or one that sends them to the other: sparse gradients are tried
    with all optimizers on those.
    """
    name = backend if backend == "tf_mirrored" else "in_graph"
    repl = create(name, num_replicas=2, **BACKENDS[backend])
    with repl.context():
        weights = {name: _weights(name) for name in NAMES}
        wrapped = {
            name: repl.wrap_optimizer(_optimizer(name), **options) for name in NAMES
        }
        for name in NAMES:
            wrapped[name].build(weights[name])

    def step(batch):
        for name in NAMES:
            grads = _gradients(weights[name], batch)
            pairs = zip(grads, weights[name], strict=True)
            wrapped[name].apply_gradients(pairs)

    for batch in _batches(2):
        repl.run(step, tuple(PerReplica(part) for part in batch))

    wrong = {}
    for name in NAMES:
        for want, weight in zip(_alone(name), weights[name], strict=True):
            error = np.abs(want - np.asarray(weight)).max()
            if error > 1e-5 * max(1.0, np.abs(want).max()):
                wrong[name] = error
    assert {} == wrong
    repl.assert_in_sync()
