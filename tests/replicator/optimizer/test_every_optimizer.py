"""Every optimizer of Keras trains on replicas as it does on one device."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import PerReplica
from tests.replicator.conftest import make

NUM_STEPS = 3
NAMES = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind is not keras.optimizers.Optimizer
)


def _optimizer(name):
    if name == "LossScaleOptimizer":
        return keras.optimizers.LossScaleOptimizer(_optimizer("Adam"))
    if name == "MultiOptimizer":
        parts = keras.optimizers.OptimizerMap(_optimizer("SGD"))
        parts[".*kernel"] = _optimizer("Adam")
        return keras.optimizers.MultiOptimizer(parts)
    return getattr(keras.optimizers, name)(learning_rate=0.02)


class Dense:
    names = NAMES
    shapes = (("kernel", (4, 3)), ("bias", (3,)))

    @staticmethod
    def batches():
        rng = np.random.default_rng(9)
        sizes = ((4, 4), (4, 3))
        return [
            [[rng.normal(size=s).astype(np.float32) for s in sizes] for _ in range(2)]
            for _ in range(NUM_STEPS)
        ]

    @staticmethod
    def gradients(weights, batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            outputs = tf.matmul(inputs, weights[0].value) + weights[1].value
            loss = tf.reduce_mean((tf.tanh(outputs) - targets) ** 2)
        return tape.gradient(loss, [w.value for w in weights])


class Sparse:
    names = tuple(name for name in NAMES if name != "MultiOptimizer")
    shapes = (("table", (6, 3)),)

    @staticmethod
    def batches():
        ids = ([0, 0, 1, 4, 0, 1], 6), ([0, 4, 0, -1, -1, -1], 3)
        return [[[np.int32(rows), np.int32(n)] for rows, n in ids]] * NUM_STEPS

    @staticmethod
    def gradients(weights, batch):
        ids, count = batch
        with tf.GradientTape() as tape:
            rows = tf.gather(weights[0].value, ids[:count])
            scale = tf.cast(tf.range(1, count + 1), tf.float32)
            loss = tf.reduce_sum(scale[:, tf.newaxis] * tf.sin(rows))
        (gradient,) = tape.gradient(loss, [weights[0].value])
        assert isinstance(gradient, tf.IndexedSlices)
        return [gradient]


def _weights(problem, name):
    rng = np.random.default_rng(len(name))
    return [
        keras.Variable(rng.normal(size=shape).astype(np.float32), name=f"{name}_{key}")
        for key, shape in problem.shapes
    ]


@functools.cache
def _alone(problem, name):
    """One device with the batches of both replicas, and dense gradients."""
    weights, optimizer = _weights(problem, name), _optimizer(name)
    for batches in problem.batches():
        parts = [problem.gradients(weights, batch) for batch in batches]
        dense = [[tf.convert_to_tensor(part) for part in both] for both in zip(*parts)]  # noqa: B905
        optimizer.apply([tf.add_n(both) / len(both) for both in dense], weights)
    return [np.asarray(w) for w in weights]


def test_there_are_optimizers_to_try():
    """The list is found in Keras, so that a new one is tried too."""
    assert {"SGD", "Adam", "Muon", "Lamb", "Ftrl"} <= set(NAMES)


@pytest.mark.parametrize(
    ("problem", "backend", "options"),
    [
        (Dense, "in_graph", {}),
        pytest.param(Dense, "tf_mirrored", {}, marks=pytest.mark.full),
        (Sparse, "in_graph_mirrored", {"sharded_update": True}),
    ],
)
def test_all_optimizers_in_one_step(problem, backend, options):
    repl = make(backend, 2)
    with repl.context():
        weights = {name: _weights(problem, name) for name in problem.names}
        wrapped = {
            name: repl.wrap_optimizer(_optimizer(name), **options) for name in weights
        }
        for name, optimizer in wrapped.items():
            optimizer.build(weights[name])

    def step(batch):
        for name, optimizer in wrapped.items():
            grads = problem.gradients(weights[name], batch)
            optimizer.apply_gradients(zip(grads, weights[name], strict=True))

    for batches in problem.batches():
        repl.run(step, [PerReplica(parts) for parts in zip(*batches, strict=True)])

    wrong = {}
    for name in problem.names:
        for want, weight in zip(_alone(problem, name), weights[name], strict=True):
            error = np.abs(want - np.asarray(weight)).max()
            if not error <= 1e-5 * max(1.0, np.abs(want).max()):
                wrong[name] = error
    assert {} == wrong
    repl.assert_in_sync()
