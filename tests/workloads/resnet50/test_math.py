"""Schedules, losses, arithmetic and LARS against the formulas of the papers."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import replicator
from workloads.common.training import LARS, PolynomialSchedule
from workloads.resnet50 import model as model_lib
from workloads.resnet50.model import ResNet50
from workloads.resnet50.study import ResNet50Config
from workloads.resnet50.train import GoyalSchedule

NUM_IMAGENET = 1_281_167
RTOL_FLOAT32 = 1e-5  # a handful of float32 roundings


def _goyal(step, global_batch_size):
    """Goyal et al. 2017, section 5.1, in epochs."""
    epoch = step * global_batch_size / NUM_IMAGENET
    target = 0.1 * global_batch_size / 256
    if global_batch_size > 256 and epoch < 5:
        # The ramp is whole steps long: it ends on the first step of epoch 5.
        ramp = np.ceil(5 * NUM_IMAGENET / global_batch_size)
        return 0.1 + (target - 0.1) * step / ramp
    return target * 0.1 ** sum(epoch >= decay for decay in (30, 60, 80))


@pytest.mark.parametrize("global_batch_size", [8, 256, 8192])
def test_schedule_is_goyals(global_batch_size):
    """Linear scaling, a ramp from 0.1 above 256, and decays at epochs 30, 60, 80."""
    schedule = GoyalSchedule(
        global_batch_size=global_batch_size, num_train_examples=NUM_IMAGENET
    )
    per_epoch = NUM_IMAGENET / global_batch_size
    epochs = (0, 0.5, 2.5, 4.99, 5.01, 29.99, 30.01, 59.99, 60.01, 79.99, 80.01, 90)
    steps = [int(epoch * per_epoch) for epoch in epochs]

    expected = [_goyal(step, global_batch_size) for step in steps]
    rates = [float(schedule(tf.constant(step, tf.int64))) for step in steps]

    np.testing.assert_allclose(rates, expected, rtol=RTOL_FLOAT32)


def test_a_shorter_training_decays_after_the_same_shares_of_it():
    """9 epochs fall where 90 do, ten times as early."""
    arguments = {"global_batch_size": 256, "num_train_examples": 2560}
    whole, short = (
        GoyalSchedule(**arguments, num_epochs=number) for number in (90.0, 9.0)
    )

    assert (300, 600, 800) == whole.decay_steps
    assert (30, 60, 80) == short.decay_steps


def test_cross_entropy_equals_numpys():
    """The loss is -log softmax of the label, with and without smoothing."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 7)).astype(np.float32)
    labels = np.array([0, 6, 3, 3, 1])
    log_probabilities = scipy.special.log_softmax(logits.astype(np.float64), axis=1)
    plain = -log_probabilities[np.arange(5), labels]
    smooth = 0.9 * plain - 0.1 * log_probabilities.mean(axis=1)

    for smoothing, expected in ((0.0, plain), (0.1, smooth)):
        found = model_lib.softmax_cross_entropy(
            tf.constant(labels), tf.constant(logits), label_smoothing=smoothing
        )
        np.testing.assert_allclose(found, expected, rtol=RTOL_FLOAT32)


@pytest.mark.parametrize(
    ("global_batch_size", "target", "num_warmup_epochs"),
    [(8192, 10.0, 5), (16_384, 25.0, 5), (32_768, 32.0, 14), (65_536, 35.6, 40)],
)
def test_rates_of_lars_follow_the_batch(global_batch_size, target, num_warmup_epochs):
    """Google's table; zero at the start and at the end, a quarter in the middle."""
    schedule = PolynomialSchedule(
        global_batch_size=global_batch_size,
        num_train_examples=1_281_167,
        num_epochs=90,
    )
    first, last = schedule.lr_warmup_steps, schedule.num_steps
    middle = (first + last) / 2

    assert pytest.approx(num_warmup_epochs, rel=0.02) == (
        first * global_batch_size / 1_281_167
    )
    assert [0.0, target / 2, target, target / 4, 0.0, 0.0] == pytest.approx(
        [float(schedule(s)) for s in (0, first / 2, first, middle, last, 2 * last)],
        rel=1e-3,
        abs=1e-6,
    )
    assert (
        schedule.get_config()
        == PolynomialSchedule(**schedule.get_config()).get_config()
    )


@pytest.mark.parametrize(("version", "giga"), [("v1", 3.86), ("v1.5", 4.09)])
def test_multiply_adds_are_the_published_ones(version, giga):
    """3.8 to 3.9 billion in He et al. 2015, 4.1 with the stride in the 3x3 layer."""
    total, _ = model_lib.multiply_adds(ResNet50Config(version=version))

    assert giga == pytest.approx(total / 1e9, abs=0.01)


@pytest.mark.parametrize("version", ["v1", "v1.5"])
def test_multiply_adds_are_those_of_the_graph(version, monkeypatch):
    """Counted from the shapes of convolutions and products in the traced network.

    Of two stages with two blocks: a block with and without projection, with and without
    a stride. The whole network has the published number, by the test above.
    """
    monkeypatch.setattr(model_lib, "NUM_BLOCKS", (2, 2))
    monkeypatch.setattr(model_lib, "WIDTHS", (64, 128))
    network = ResNet50(num_classes=10, version=version)
    traced = tf.function(network).get_concrete_function(tf.TensorSpec([1, 64, 64, 3]))
    ops = traced.graph.get_operations()
    counted = sum(
        int(np.prod(op.outputs[0].shape[1:]) * np.prod(op.inputs[1].shape[:-1]))
        for op in ops
        if op.type in ("Conv2D", "MatMul")
    )
    config = ResNet50Config(image_size=64, num_classes=10, version=version)
    total, stem = model_lib.multiply_adds(config)

    assert counted == total
    assert 6 * total - 2 * stem == model_lib.training_flops(config)


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
    config = make().get_config()
    assert config == LARS.from_config(config).get_config()
