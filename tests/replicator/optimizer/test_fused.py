"""Fused kernels: the update of Keras to the last digits, or no fused update at all."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels as tf_kernels

import replicator
from replicator import PerReplica
from tests.replicator.conftest import make

NUM_STEPS = 30
SHAPES = ((2, 3), ())
MADE = keras.optimizers
KERNELS = {
    "sgd": lambda: MADE.SGD(0.05),
    "momentum": lambda: MADE.SGD(0.05, momentum=0.9),
    "nesterov": lambda: MADE.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: MADE.Adam(0.01),
    "adam_betas": lambda: MADE.Adam(0.02, beta_1=0.7, beta_2=0.95, epsilon=1e-3),
    "schedule": lambda: MADE.SGD(
        MADE.schedules.CosineDecay(0.1, NUM_STEPS), momentum=0.5
    ),
}


class Subclass(keras.optimizers.SGD):
    pass


# Options and classes that change the rule.
LEFT_TO_KERAS = {
    "weight_decay": lambda: MADE.SGD(0.1, weight_decay=0.01),
    "clipnorm": lambda: MADE.SGD(0.1, clipnorm=1.0),
    "clipvalue": lambda: MADE.SGD(0.1, clipvalue=1.0),
    "global_clipnorm": lambda: MADE.SGD(0.1, global_clipnorm=1.0),
    "use_ema": lambda: MADE.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "loss_scale_factor": lambda: MADE.SGD(0.1, loss_scale_factor=2.0),
    "accumulation": lambda: MADE.SGD(0.1, gradient_accumulation_steps=2),
    "amsgrad": lambda: MADE.Adam(0.1, amsgrad=True),
    "subclass": lambda: Subclass(0.1),
    "adamw": lambda: MADE.AdamW(0.1),
    "rmsprop": lambda: MADE.RMSprop(0.1),
}


def _numbers(step, replica):
    rng = np.random.default_rng(100 * step + replica)
    scale = 10.0 ** rng.uniform(-2, 1)
    return [scale * rng.normal(size=shape) for shape in SHAPES]


def _variables(dtype):
    first = keras.Variable(np.linspace(-1, 1, 6).reshape(2, 3), dtype=dtype)
    return [first, keras.Variable(0.5, dtype=dtype)]


def _trained(repl, cases):
    """Wrapped and plain optimizers of the same gradients, by case and type."""
    ours, theirs = (
        {
            (name, dtype): (make(), _variables(dtype))
            for name, make in cases.items()
            for dtype in ("float32", "float64")[: 1 + (name in KERNELS)]
        }
        for _ in range(2)
    )
    wrapped = {}
    for key, (optimizer, variables) in ours.items():
        wrapped[key] = repl.wrap_optimizer(optimizer)
        wrapped[key].build(variables)
        theirs[key][0].build(theirs[key][1])

    def step(numbers):
        for key, optimizer in wrapped.items():
            grads = [tf.cast(each, key[1]) for each in numbers]
            optimizer.apply_gradients(zip(grads, ours[key][1], strict=True))

    @tf.function
    def plain(numbers):
        for key, (optimizer, variables) in theirs.items():
            optimizer.apply([tf.cast(each, key[1]) for each in numbers], variables)

    for index in range(NUM_STEPS):
        parts = [_numbers(index, replica) for replica in range(repl.num_replicas)]
        values = [list(map(tf.constant, each)) for each in zip(*parts, strict=True)]
        repl.run(step, [replicator.PerReplica(each) for each in values])
        plain([tf.reduce_mean(tf.stack(each), axis=0) for each in values])
    return ours, theirs, wrapped


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_an_update_is_that_of_keras(num_replicas):
    """Weights, slots and iterations agree after random gradients of any size."""
    backend = "single" if num_replicas == 1 else "in_graph"
    repl = replicator.create(backend, num_replicas=num_replicas)
    cases = {**KERNELS, **(LEFT_TO_KERAS if num_replicas == 1 else {})}

    ours, theirs, wrapped = _trained(repl, cases)

    for key, (optimizer, variables) in ours.items():
        name, dtype = key
        assert wrapped[key].uses_fused_update == (name in KERNELS), key
        other, others = theirs[key]
        assert int(optimizer.iterations) == int(other.iterations)
        # A schedule gives a rate in float32.
        is_exact = dtype == "float64" and name != "schedule"
        rtol = 1e-9 if is_exact else 5e-5
        pairs = zip(
            [*variables, *optimizer.variables], [*others, *other.variables], strict=True
        )
        for mine, expected in pairs:
            np.testing.assert_allclose(
                mine.numpy(), expected.numpy(), rtol, rtol / 50, err_msg=str(key)
            )


def _overwritten():
    variable = keras.Variable(np.zeros((2, 3), np.float32))
    variable.overwrite_with_gradient = True
    return variable


def _slices(grad):
    return tf.IndexedSlices(grad, tf.constant([0, 1]), tf.constant([2, 3]))


ODD = {
    "sparse, of Adam": (lambda: MADE.Adam(0.1), lambda: tf.Variable(X), _slices),
    "half_gradient": (
        lambda: MADE.SGD(0.1),
        lambda: keras.Variable(X),
        lambda grad: tf.cast(grad, tf.float16),
    ),
    "constraint": (
        lambda: MADE.SGD(0.1),
        lambda: tf.Variable(X, constraint=tf.nn.relu),
        lambda grad: grad,
    ),
    "overwritten": (lambda: MADE.SGD(0.1), _overwritten, lambda grad: grad),
}
X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("name", ODD)
def test_one_variable_that_no_kernel_takes_leaves_all_to_keras(name):
    """A half-fused update would count its iteration twice."""
    make_optimizer, make, change = ODD[name]
    repl = replicator.create("single")
    plain, odd = keras.Variable(X), make()
    optimizer = repl.wrap_optimizer(make_optimizer())
    pairs = [(tf.ones([2, 3]), plain), (change(tf.ones([2, 3])), odd)]

    repl.run(lambda: optimizer.apply_gradients(pairs))

    assert not optimizer.uses_fused_update
    assert 1 == int(optimizer.iterations)


DTYPES = ("float16", "bfloat16", "float32")


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
def test_an_update_is_fused_where_the_device_of_its_variable_has_the_kernel(
    monkeypatch, device_type
):
    ops = {"momentum": "ResourceApplyKerasMomentum", "adam": "ResourceApplyAdam"}
    expected = {
        (name, dtype): any(
            tf.as_dtype(dtype).as_datatype_enum in constraint.allowed_values.list.type
            for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel
            for constraint in kernel.constraint
            if kernel.device_type == device_type and constraint.name == "T"
        )
        for name, op in ops.items()
        for dtype in DTYPES
    }
    if not any(expected.values()):
        pytest.skip(f"this build of TensorFlow has no {device_type} kernels")
    repl = replicator.create("single")
    wrapped = {key: repl.wrap_optimizer(KERNELS[key[0]]()) for key in expected}
    variables = {key: tf.Variable(tf.ones([2, 3], key[1])) for key in expected}
    for key, optimizer in wrapped.items():
        optimizer.build([variables[key]])
    device = f"/job:worker/task:1/device:{device_type}:1"
    monkeypatch.setattr(type(tf.Variable(0.0)), "device", device)

    def step():
        for key, optimizer in wrapped.items():
            grad = tf.zeros([2, 3], key[1])
            optimizer.apply_gradients([(grad, variables[key])])

    tf.function(lambda: repl.as_strategy().run(step)).get_concrete_function()

    assert expected == {key: each.uses_fused_update for key, each in wrapped.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_two_servers_each_subtracts_rows_by_its_kernel(make_async, dtype):
    repl = make_async(1, 2)
    with repl.context():
        weights = [tf.Variable(tf.ones([2, 3], dtype)) for _ in range(2)]
        optimizer = repl.wrap_optimizer(MADE.SGD(0.5))
    rows = _slices(tf.ones([2, 3], dtype))

    repl.run(lambda: optimizer.apply_gradients([(rows, w) for w in weights]))

    assert optimizer.uses_fused_update
    for weight in weights:
        assert [[0.5] * 3] * 2 == tf.cast(weight, tf.float32).numpy().tolist()


NUM_BATCHES = 3
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
            for _ in range(NUM_BATCHES)
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
        return [[[np.int32(rows), np.int32(n)] for rows, n in ids]] * NUM_BATCHES

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
