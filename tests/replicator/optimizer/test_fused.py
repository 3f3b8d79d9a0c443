"""Fused kernels: the update of Keras to the last digits, or no fused update at all."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels as tf_kernels

from replicator.optimizer import fused

NUM_STEPS = 100
KERNELS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam_betas": lambda: keras.optimizers.Adam(
        0.02, beta_1=0.7, beta_2=0.95, epsilon=1e-3
    ),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.1, NUM_STEPS), momentum=0.5
    ),
}
# A kernel multiplies in another order: a few roundings per step, over a hundred steps.
RTOL = {"float32": 5e-5, "float64": 1e-9}


def _variables(dtype):
    return [
        keras.Variable(np.linspace(-1.0, 1.0, 6).reshape(2, 3), dtype=dtype, name="a"),
        keras.Variable(np.float64(0.5), dtype=dtype, name="b"),
    ]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("num_summed", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_hundred_fused_updates_are_those_of_keras(name, dtype, num_summed):
    """Weights, slots and iterations agree after random gradients of any size."""
    rng = np.random.default_rng(2)
    ours, theirs = KERNELS[name](), KERNELS[name]()
    our_variables, their_variables = _variables(dtype), _variables(dtype)
    for optimizer, variables in ((ours, our_variables), (theirs, their_variables)):
        optimizer.build(variables)
    probe = [tf.zeros(v.shape, dtype) for v in our_variables]
    update = fused.find(ours, probe, our_variables)
    if not update.is_linear:
        num_summed = 1

    @tf.function
    def step_ours(*grads):
        update.apply(grads, our_variables, num_summed)

    @tf.function
    def step_theirs(*grads):
        theirs.apply([g / num_summed for g in grads], their_variables)

    for _ in range(NUM_STEPS):
        scale = 10.0 ** rng.uniform(-2, 1)
        grads = [
            tf.constant(scale * rng.normal(size=v.shape), dtype) for v in our_variables
        ]
        step_ours(*grads)
        step_theirs(*grads)

    assert NUM_STEPS == int(ours.iterations.numpy()) == int(theirs.iterations.numpy())
    pairs = [*zip(our_variables, their_variables, strict=True)]
    pairs += zip(ours.variables, theirs.variables, strict=True)
    for mine, other in pairs:
        np.testing.assert_allclose(
            other.numpy(),
            mine.numpy(),
            rtol=RTOL[dtype],
            atol=RTOL[dtype] / 50,
            err_msg=mine.path,
        )


class _Subclass(keras.optimizers.SGD):
    pass


REFUSED_OPTIONS = {
    "weight_decay": 0.01,
    "clipnorm": 1.0,
    "clipvalue": 1.0,
    "global_clipnorm": 1.0,
    "use_ema": True,
    "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2,
}
REFUSED = {
    **{
        name: lambda name=name, value=value: keras.optimizers.SGD(0.1, **{name: value})
        for name, value in REFUSED_OPTIONS.items()
    },
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "subclass": lambda: _Subclass(0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_update_with_more_to_it_is_left_to_keras(name):
    """Options and classes that change the rule have no fused update."""
    variable = keras.Variable(np.zeros((2, 3), np.float32))
    optimizer = REFUSED[name]()
    optimizer.build([variable])

    assert fused.find(optimizer, [tf.zeros([2, 3])], [variable]) is None


def _sparse(variable):
    values = tf.zeros([1, *variable.shape[1:]])
    return tf.IndexedSlices(values, tf.constant([0]), tf.constant(variable.shape))


def _overwritten(variable):
    variable.overwrite_with_gradient = True
    return variable


REFUSED_VARIABLES = {
    "sparse": (lambda: keras.Variable(np.zeros((2, 3), np.float32)), _sparse),
    "half_gradient": (
        lambda: keras.Variable(np.zeros((2, 3), np.float32)),
        lambda v: tf.zeros(v.shape, tf.float16),
    ),
    "integers": (
        lambda: tf.Variable(np.zeros((2, 3), np.int32)),
        lambda v: tf.zeros(v.shape, tf.int32),
    ),
    "constraint": (
        lambda: tf.Variable(np.zeros((2, 3), np.float32), constraint=tf.nn.relu),
        lambda v: tf.zeros(v.shape),
    ),
    "overwritten": (
        lambda: _overwritten(keras.Variable(np.zeros((2, 3), np.float32))),
        lambda v: tf.zeros(v.shape),
    ),
}


@pytest.mark.parametrize("name", REFUSED_VARIABLES)
def test_one_variable_that_no_kernel_takes_leaves_all_to_keras(name):
    """A half-fused update would count its iteration twice."""
    make, make_grad = REFUSED_VARIABLES[name]
    plain, odd = keras.Variable(np.zeros((2, 3), np.float32)), make()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([plain])

    found = fused.find(optimizer, [tf.zeros([2, 3]), make_grad(odd)], [plain, odd])

    assert found is None
    assert fused.find(optimizer, [tf.zeros([2, 3])], [plain]) is not None


def _raw_dtypes(op, attribute, device_type):
    """Types that TensorFlow itself says the kernels of an op take."""
    return {
        tf.as_dtype(number).name
        for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel
        for constraint in kernel.constraint
        for number in constraint.allowed_values.list.type
        if kernel.device_type == device_type and constraint.name == attribute
    }


UPDATE_KERNELS = {
    "sgd": ("ResourceApplyGradientDescent", "T"),
    "momentum": ("ResourceApplyKerasMomentum", "T"),
    "nesterov": ("ResourceApplyKerasMomentum", "T"),
    "adam": ("ResourceApplyAdam", "T"),
    "rows": ("ResourceScatterSub", "dtype"),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
@pytest.mark.parametrize("name", UPDATE_KERNELS)
def test_an_update_is_fused_where_the_device_of_its_variable_has_the_kernel(
    name, device_type, dtype
):
    """As TensorFlow's registry has it: CPUs update bfloat16, GPUs do not."""
    op, attribute = UPDATE_KERNELS[name]
    available = _raw_dtypes(op, attribute, device_type)
    if not available:
        pytest.skip(f"this build of TensorFlow has no {device_type} kernels of {op}")
    variable = types.SimpleNamespace(
        dtype=dtype, shape=(2, 3), device=f"/job:worker/task:1/device:{device_type}:1"
    )
    grad = tf.zeros([2, 3], dtype)
    if name == "rows":
        grad = tf.IndexedSlices(grad, tf.constant([0, 1]), tf.constant([2, 3]))
    optimizer = KERNELS["sgd" if name == "rows" else name]()

    found = fused.find(optimizer, [grad], [variable], takes_sparse=True)

    assert (dtype in available) == (found is not None)
