"""LARS against its equations in NumPy, alone and replicated."""

import keras
import numpy as np
import pytest

import replicator
from workloads.common.lars import LARS

MOMENTUM, DECAY, TRUST, RATE = 0.9, 1e-2, 1e-2, 0.5


def reference(weights, gradients, *, is_kernel):
    """The equations of the class, in float64."""
    weights = weights.astype(np.float64)
    velocity = np.zeros_like(weights)
    for gradient in gradients:
        rate, step = RATE, gradient.astype(np.float64)
        if is_kernel:
            norm, of_step = np.linalg.norm(weights), np.linalg.norm(step)
            if norm and of_step:
                rate *= TRUST * norm / (of_step + DECAY * norm)
            step = step + DECAY * weights
        velocity = MOMENTUM * velocity + rate * step
        weights = weights - velocity
    return weights


def make():
    """The optimizer with unusual numbers, so that each one matters."""
    return LARS(RATE, momentum=MOMENTUM, decay=DECAY, trust=TRUST)


@pytest.mark.parametrize("shape", [(3, 3, 2, 4), (5, 4), (4,)])
def test_updates_follow_the_equations(shape):
    """Kernels are scaled and decayed; vectors are not."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=shape).astype(np.float32)
    gradients = [generator.normal(size=shape).astype(np.float32) for _ in range(5)]
    variable = keras.Variable(weights)
    optimizer = make()
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, variable)])

    expected = reference(weights, gradients, is_kernel=len(shape) > 1)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("zero", ["weights", "gradient"])
def test_a_norm_of_zero_does_not_divide(zero):
    """The ratio is one, so that zero weights can leave zero."""
    weights = np.zeros((2, 2), np.float32) if zero == "weights" else np.eye(2)
    gradient = np.zeros((2, 2)) if zero == "gradient" else np.ones((2, 2))
    variable = keras.Variable(weights.astype(np.float32))
    make().apply_gradients([(gradient.astype(np.float32), variable)])

    expected = reference(weights, [gradient], is_kernel=True)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


def test_it_is_replicated_as_any_optimizer():
    """Two replicas with gradients g and 3 g make the step of 2 g."""
    repl = replicator.create("in_graph", num_replicas=2)
    weights = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    gradient = np.full((2, 3), 0.5, np.float32)
    with repl.context():
        variable = keras.Variable(weights)
        optimizer = repl.wrap_optimizer(make())

    def step():
        replica_id = replicator.get_replica_context().replica_id
        scale = 1.0 + 2.0 * keras.ops.cast(replica_id, "float32")
        optimizer.apply_gradients([(scale * gradient, variable)])

    repl.run(step)

    expected = reference(weights, [2 * gradient], is_kernel=True)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)
    repl.assert_in_sync()


def test_the_config_makes_it_again():
    """As Keras saves optimizers."""
    config = make().get_config()

    assert config == LARS.from_config(config).get_config()
