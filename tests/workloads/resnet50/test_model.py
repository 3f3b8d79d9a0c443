"""The network: counts, structure, and numbers against Keras' own ResNet-50."""

import math
from unittest import mock

import keras
import numpy as np
import pytest
import scipy.signal
import short_resnet
import tensorflow as tf

from workloads.resnet50 import model as model_lib
from workloads.resnet50.model import ResNet50

# 53 convolutions in float32, summed in another order: errors of 1e-6 grow by depth.
ATOL_DEEP_FLOAT32 = 2e-4


def _count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.fixture(scope="module")
def model():
    return ResNet50(seed=3)


@pytest.mark.parametrize("version", ["v1", "v1.5"])
def test_parameter_count_is_exact(version, model):
    """25,557,032 trainable parameters, and a mean and variance for 26,560 channels.

    The published count: He 2015 and every later implementation with 1000 classes.
    """
    made = model if version == "v1.5" else ResNet50(version=version)

    assert _count(made.trainable_variables) == 25_557_032
    assert _count(made.non_trainable_variables) == 2 * 26_560


@pytest.mark.parametrize(
    ("version", "expected"), [("v1", (2, 1, 1)), ("v1.5", (1, 2, 1))]
)
def test_stride_stands_where_the_version_says(version, expected, monkeypatch):
    """v1 strides in the first 1x1 convolution, v1.5 in the 3x3, in groups 1 to 3."""
    monkeypatch.setattr(model_lib, "WIDTHS", (8, 16, 32, 64))
    made = ResNet50(version=version)
    strides = [tuple(conv.strides for conv in block.convs) for block in made.blocks]
    first_of_group = {3, 7, 13}

    assert [(expected if i in first_of_group else (1, 1, 1)) for i in range(16)] == (
        strides
    )


def test_last_gamma_of_each_block_starts_at_zero(model):
    """One everywhere else, and there as well where it is switched off."""
    for block in model.blocks:
        first, second, last = (conv.norm.gamma.numpy() for conv in block.convs)
        assert not last.any()
        assert (first == 1.0).all()
        assert (second == 1.0).all()
    with short_resnet.short():
        plain = ResNet50(zero_gamma=False)
    for block in plain.blocks:
        assert (block.convs[-1].norm.gamma.numpy() == 1.0).all()


def test_initial_kernels_have_hes_spread(model):
    """Standard deviation sqrt(2 / fan_in), and 0.01 in the classifier."""
    for conv in (model.stem, model.blocks[0].convs[1], model.blocks[15].convs[2]):
        kernel = conv.kernel.numpy()
        fan_in = math.prod(kernel.shape[:3])

        assert math.sqrt(2 / fan_in) == pytest.approx(kernel.std(), rel=0.05)
    classifier = model.classifier.kernel.numpy()

    assert pytest.approx(classifier.std(), rel=0.01) == 0.01


def test_seed_determines_the_weights(model, monkeypatch):
    monkeypatch.setattr(model_lib, "NUM_BLOCKS", (3,))
    monkeypatch.setattr(model_lib, "WIDTHS", model_lib.WIDTHS[:1])
    same, other = ResNet50(seed=3), ResNet50(seed=4)
    kernel = model.blocks[1].convs[0].kernel.numpy()

    np.testing.assert_array_equal(kernel, same.blocks[1].convs[0].kernel.numpy())
    assert (kernel != other.blocks[1].convs[0].kernel.numpy()).all()
    assert (kernel != model.blocks[2].convs[0].kernel.numpy()).all()


def _copy_from_keras(reference, made):
    """Copies weights; biases before batch norm move into its mean."""
    names = [("conv1", made.stem)]
    for group, count in enumerate(model_lib.NUM_BLOCKS):
        for index in range(count):
            block = made.blocks[sum(model_lib.NUM_BLOCKS[:group]) + index]
            prefix = f"conv{group + 2}_block{index + 1}"
            names += [(f"{prefix}_{i + 1}", c) for i, c in enumerate(block.convs)]
            if block.projection is not None:
                names.append((f"{prefix}_0", block.projection))
    rng = np.random.default_rng(0)
    for name, conv in names:
        theirs, norm = (
            reference.get_layer(f"{name}_conv"),
            reference.get_layer(f"{name}_bn"),
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
    made = ResNet50(version="v1")
    _copy_from_keras(reference, made)
    images = tf.random.stateless_normal([2, 64, 64, 3], [0, 1])

    evaluated = reference(images, training=False).numpy()
    trained = reference(images, training=True).numpy()

    assert evaluated.std() > 0.01
    np.testing.assert_allclose(
        made(images, training=False), evaluated, rtol=1e-3, atol=ATOL_DEEP_FLOAT32
    )
    # Batch statistics of few values amplify rounding.
    np.testing.assert_allclose(made(images, training=True), trained, rtol=0, atol=1e-2)


def test_moving_statistics_follow_the_batch():
    """One training step mixes a tenth of the batch's mean and unbiased variance in."""
    seeds = iter([(0, 1)])
    layer = model_lib.ConvBatchNorm(3, 4, kernel_size=1, strides=1, seeds=seeds)
    images = tf.random.stateless_normal([2, 4, 4, 3], [0, 1])
    convolved = tf.nn.conv2d(images, layer.kernel, 1, "SAME").numpy().reshape(-1, 4)

    layer(images, training=False)  # evaluation leaves them alone
    assert not layer.norm.moving_mean.numpy().any()
    outputs = layer(images, training=True).numpy().reshape(-1, 4)

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


def test_gradient_graph_stays_small(model):
    """A training step stays under 2,000 nodes without an update (fused batch norm).

    Single-op batch norm makes it 5,000, and every replica pays for its copy.
    """

    @tf.function(autograph=False)
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    traced = step.get_concrete_function(tf.TensorSpec([2, 32, 32, 3]))

    assert len(traced.graph.get_operations()) < 2_000


def test_mixed_precision_keeps_variables_and_logits_in_float32():
    with short_resnet.short():
        made = ResNet50(compute_dtype="mixed_bfloat16")
    features = made.blocks[0](tf.zeros([1, 8, 8, 8]), training=False)
    logits = made(tf.zeros([1, 32, 32, 3]), training=False)

    assert (tf.bfloat16, tf.float32) == (features.dtype, logits.dtype)
    assert {str(v.dtype) for v in made.variables} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("name", ["stem", "3x3"])
def test_strided_windows_are_padded_alike_on_both_sides(name, model):
    """As published, not as SAME does it: SciPy's correlation of padded images."""
    layer = model.stem if name == "stem" else model.blocks[3].convs[1]
    kernel = layer.kernel.numpy()[..., :2]
    size = kernel.shape[0]
    images = np.random.default_rng(0).normal(size=(8, 8, kernel.shape[2]))
    padded = np.pad(images, [[size // 2] * 2] * 2 + [[0, 0]])
    expected = [
        scipy.signal.correlate(padded, kernel[..., i], "valid")[::2, ::2, 0]
        for i in range(2)
    ]
    seen = []
    with mock.patch.object(layer, "norm", lambda x, training: seen.append(x) or x):
        layer(tf.constant(images[None], tf.float32))

    assert layer.strides == 2
    found = np.moveaxis(seen[0].numpy()[0, ..., :2], -1, 0)
    np.testing.assert_allclose(found, expected, atol=1e-4)
