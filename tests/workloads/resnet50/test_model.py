"""The network, its loss, rates and LARS, against Keras, NumPy and the papers."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import scipy.special
import small_programs
import tensorflow as tf

from workloads.resnet50 import (
    LARS,
    GoyalSchedule,
    PolynomialSchedule,
    ResNet50,
    softmax_cross_entropy,
)

# 53 convolutions in float32, summed in another order: errors of 1e-6 grow by depth.
ATOL_DEEP_FLOAT32 = 2e-4
NUM_IMAGENET = 1_281_167
RTOL_FLOAT32 = 1e-5  # a handful of float32 roundings


def _count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def _copy_from_keras(reference, made):
    """Copies weights; biases before batch norm move into its mean."""
    names = [("conv1", made.stem)]
    for group, count in enumerate(made.num_blocks):
        for index in range(count):
            block = made.blocks[sum(made.num_blocks[:group]) + index]
            prefix = f"conv{group + 2}_block{index + 1}"
            names += [(f"{prefix}_{i + 1}", c) for i, c in enumerate(block.convs)]
            if block.projection is not None:
                names.append((f"{prefix}_0", block.projection))
    rng = np.random.default_rng(0)
    for name, conv in names:
        theirs, norm = (
            reference.get_layer(f"{name}_{kind}") for kind in ("conv", "bn")
        )
        size = conv.norm.gamma.shape
        theirs.bias.assign(rng.normal(0, 0.1, size))
        norm.gamma.assign(rng.uniform(0.5, 1.0, size))
        norm.beta.assign(rng.normal(0, 0.1, size))
        norm.moving_mean.assign(rng.normal(0, 0.1, size))
        norm.moving_variance.assign(rng.uniform(1.0, 2.0, size))
        conv.kernel.assign(theirs.kernel)
        conv.norm.gamma.assign(norm.gamma)
        conv.norm.beta.assign(norm.beta)
        conv.norm.moving_mean.assign(norm.moving_mean - theirs.bias)
        # Keras uses epsilon 1.001e-5.
        conv.norm.moving_variance.assign(norm.moving_variance + 0.001e-5)
    made.classifier.kernel.assign(reference.get_layer("predictions").kernel)
    made.classifier.bias.assign(reference.get_layer("predictions").bias)


def test_v1_equals_keras_applications():
    reference = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classifier_activation=None
    )
    made = ResNet50(small_programs.published("resnet50", version="v1"))
    for conv in (made.stem, made.blocks[0].convs[1], made.blocks[15].convs[2]):
        kernel = conv.kernel.numpy()
        spread = math.sqrt(2 / math.prod(kernel.shape[:3]))
        assert spread == pytest.approx(kernel.std(), rel=0.05)
    assert pytest.approx(made.classifier.kernel.numpy().std(), rel=0.01) == 0.01
    # The last scale of each block starts at zero, and one everywhere else.
    gammas = {tuple(float(c.norm.gamma[0]) for c in b.convs) for b in made.blocks}
    assert {(1.0, 1.0, 0.0)} == gammas
    _copy_from_keras(reference, made)
    images = tf.random.stateless_normal([2, 64, 64, 3], [0, 1])

    evaluated = reference(images, training=False).numpy()
    trained = reference(images, training=True).numpy()

    # He 2015 and every later implementation with 1000 classes.
    assert _count(made.trainable_variables) == 25_557_032
    assert _count(made.non_trainable_variables) == 2 * 26_560
    assert evaluated.std() > 0.01
    np.testing.assert_allclose(
        made(images, training=False), evaluated, rtol=1e-3, atol=ATOL_DEEP_FLOAT32
    )
    # Batch statistics of few values amplify rounding.
    np.testing.assert_allclose(made(images, training=True), trained, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("version", "expected", "giga", "flops"),
    [("v1", (2, 1, 1), 3.86, 479_625_216), ("v1.5", (1, 2, 1), 4.09, 507_936_768)],
)
def test_stride_and_arithmetic_are_those_of_the_version(version, expected, giga, flops):
    """v1 strides in the first 1x1 convolution, v1.5 in the 3x3, in groups 1 to 3.

    3.8 to 3.9 billion multiply-adds in He et al. 2015, 4.1 with the later stride.
    """
    program = small_programs.build_whole("resnet50", version=version)
    training, first_of_group = program.training, {3, 7, 13}
    blocks = training.model.blocks
    strides = [tuple(conv.strides for conv in block.convs) for block in blocks]
    training.config = dataclasses.replace(training.config, image_size=224)
    # Twice forward and twice that backward, but for pixels, which the stem has.
    total = (training.flops() / 2 + 112**2 * 7 * 7 * 3 * 64) / 3

    assert [(expected if i in first_of_group else (1, 1, 1)) for i in range(16)] == (
        strides
    )
    assert giga == pytest.approx(total / 1e9, abs=0.01)
    assert flops == program.flops_per_example  # at 32 px


def test_moving_statistics_follow_the_batch():
    with small_programs.short():
        layer = ResNet50(small_programs.published("resnet50")).blocks[0].convs[0]
    images = tf.random.stateless_normal([2, 4, 4, 8], [0, 1])
    convolved = tf.nn.conv2d(images, layer.kernel, 1, "SAME").numpy().reshape(-1, 8)

    layer(images, training=False)  # evaluation leaves them alone
    assert not layer.norm.moving_mean.numpy().any()
    outputs = layer(images, training=True).numpy().reshape(-1, 8)

    normalised = (convolved - convolved.mean(0)) / np.sqrt(convolved.var(0) + 1e-5)
    np.testing.assert_allclose(outputs, normalised, atol=1e-5)
    np.testing.assert_allclose(
        layer.norm.moving_mean.numpy(), 0.1 * convolved.mean(0), atol=1e-6
    )
    np.testing.assert_allclose(
        layer.norm.moving_variance.numpy(),
        0.9 + 0.1 * convolved.var(0, ddof=1),
        rtol=1e-5,
    )


def test_mixed_precision_keeps_variables_and_logits_in_float32():
    with small_programs.short():
        made = ResNet50(
            small_programs.published(
                "resnet50", compute_dtype="mixed_bfloat16", zero_gamma=False
            )
        )
    features = made.blocks[0](tf.zeros([1, 8, 8, 8]), training=False)
    logits = made(tf.zeros([1, 32, 32, 3]), training=False)

    assert (tf.bfloat16, tf.float32) == (features.dtype, logits.dtype)
    assert {str(v.dtype) for v in made.variables} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"
    assert {1.0} == {float(block.convs[-1].norm.gamma[0]) for block in made.blocks}


def test_cross_entropy_equals_numpys():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 7)).astype(np.float32)
    labels = np.array([0, 6, 3, 3, 1])
    log_probabilities = scipy.special.log_softmax(logits.astype(np.float64), axis=1)
    plain = -log_probabilities[np.arange(5), labels]
    smooth = 0.9 * plain - 0.1 * log_probabilities.mean(axis=1)

    for smoothing, expected in ((0.0, plain), (0.1, smooth)):
        found = softmax_cross_entropy(
            tf.constant(labels), tf.constant(logits), label_smoothing=smoothing
        )
        np.testing.assert_allclose(found, expected, rtol=RTOL_FLOAT32)


# Goyal et al. 2017, section 5.1, in epochs.
def _goyal(step, global_batch_size, num_epochs):
    epoch = step * global_batch_size / NUM_IMAGENET
    target = 0.1 * global_batch_size / 256
    if global_batch_size > 256 and epoch < 5:
        # The ramp is whole steps long: it ends on the first step of epoch 5.
        ramp = np.ceil(5 * NUM_IMAGENET / global_batch_size)
        return 0.1 + (target - 0.1) * step / ramp
    share = epoch * 90 / num_epochs
    return target * 0.1 ** sum(share >= decay for decay in (30, 60, 80))


@pytest.mark.parametrize(
    ("global_batch_size", "num_epochs"), [(8, 9), (256, 90), (8192, 90)]
)
def test_schedule_is_goyals(global_batch_size, num_epochs):
    """Linear scaling, a ramp from 0.1 above 256, and decays at epochs 30, 60, 80.

    A shorter training decays after the same shares of it.
    """
    schedule = GoyalSchedule(
        global_batch_size=global_batch_size,
        num_train_examples=NUM_IMAGENET,
        num_epochs=num_epochs,
    )
    per_epoch = NUM_IMAGENET / global_batch_size
    epochs = [0, 0.5, 2.5, 4.99, 5.01, 29.99, 30.01, 59.99, 60.01, 79.99, 80.01, 90]
    steps = [int(epoch * num_epochs / 90 * per_epoch) for epoch in epochs]

    expected = [_goyal(step, global_batch_size, num_epochs) for step in steps]
    rates = [float(schedule(tf.constant(step, tf.int64))) for step in steps]

    np.testing.assert_allclose(rates, expected, rtol=RTOL_FLOAT32)


@pytest.mark.parametrize(
    ("global_batch_size", "target", "num_warmup_epochs"),
    [(8192, 10.0, 5), (16_384, 25.0, 5), (32_768, 32.0, 14), (65_536, 35.6, 40)],
)
def test_rates_of_lars_follow_the_batch(global_batch_size, target, num_warmup_epochs):
    schedule = PolynomialSchedule(
        global_batch_size=global_batch_size,
        num_train_examples=NUM_IMAGENET,
        num_epochs=90,
    )
    first, last = schedule.lr_warmup_steps, schedule.num_steps
    middle = (first + last) / 2

    assert pytest.approx(num_warmup_epochs, rel=0.02) == (
        first * global_batch_size / NUM_IMAGENET
    )
    assert [0.0, target / 2, target, target / 4, 0.0, 0.0] == pytest.approx(
        [float(schedule(s)) for s in (0, first / 2, first, middle, last, 2 * last)],
        rel=1e-3,
        abs=1e-6,
    )
    again = PolynomialSchedule(**schedule.get_config())
    assert schedule.get_config() == again.get_config()


MOMENTUM, DECAY, TRUST, RATE = 0.9, 1e-2, 1e-2, 0.5


def lars(weights, gradients, *, is_kernel):
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
    return LARS(RATE, momentum=MOMENTUM, decay=DECAY, trust=TRUST)


def test_updates_follow_the_equations():
    rng = np.random.default_rng(0)
    cases = [
        (rng.normal(size=shape), rng.normal(size=(5, *shape)))
        for shape in ((3, 3, 2, 4), (4,))
    ]
    zeros, ones = np.zeros((2, 2)), np.ones((1, 2, 2))
    for weights, gradients in (*cases, (zeros, ones), (np.eye(2), 0 * ones)):
        variable = keras.Variable(weights.astype(np.float32))
        optimizer = make()
        for gradient in gradients.astype(np.float32):
            optimizer.apply_gradients([(gradient, variable)])

        expected = lars(weights, gradients, is_kernel=weights.ndim > 1)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=4e-6, atol=2e-7)
