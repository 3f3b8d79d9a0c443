"""Generator and discriminator: published sizes, class conditioning, spectral norms."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from workloads import catalog
from workloads.sngan import layers
from workloads.sngan.networks import Discriminator, Generator, LinearDecay


def make_config(preset="smoke", **options):
    return catalog.make_config("sngan", preset, options)


SMOKE = make_config()


def num_parameters(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def test_networks_at_128_px_have_the_published_size():
    """A generator of 42.0 million with 1,000 classes (reported by He et al. 2020)."""
    paper = make_config("paper")
    generator = num_parameters(Generator(paper, seed=0))

    assert 42.0 == pytest.approx(generator / 1e6, abs=0.1)
    assert 72_038_788 == generator + num_parameters(Discriminator(paper, seed=1))


def test_the_projection_is_the_inner_product_with_the_class():
    """Logits of two classes differ by <V (y1 - y2), phi>; equation 7 of the paper."""
    discriminator = Discriminator(SMOKE, seed=1)
    images = tf.random.stateless_normal([4, 16, 16, 3], seed=[1, 2])
    features = {}
    original = discriminator.dense.call

    def spy(inputs, training=False):
        features["phi"] = inputs
        return original(inputs, training=training)

    discriminator.dense.call = spy
    first = discriminator(images, tf.fill([4], 2))
    second = discriminator(images, tf.fill([4], 7))
    vectors = discriminator.embedding(tf.constant([2, 7])).numpy()
    expected = features["phi"].numpy() @ (vectors[0] - vectors[1])

    np.testing.assert_allclose(first - second, expected, rtol=1e-4, atol=1e-5)


def test_upsampling_repeats_and_downsampling_averages():
    images = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype(np.float32)
    repeated = images.repeat(2, axis=1).repeat(2, axis=2)

    np.testing.assert_array_equal(layers.upsample(tf.constant(images)), repeated)
    np.testing.assert_allclose(layers.downsample(repeated), images, rtol=1e-6)


def test_the_rate_falls_linearly_to_zero():
    """From the requested fraction of steps, and never where that is one."""
    late = LinearDecay(learning_rate=1e-3, num_steps=450, decay_start=400 / 450)
    never = LinearDecay(learning_rate=1e-3, num_steps=10, decay_start=1.0)

    assert [1e-3, 1e-3, 5e-4, 0.0, 0.0] == pytest.approx(
        [float(late(step)) for step in (0, 400, 425, 450, 500)], abs=1e-9
    )
    assert pytest.approx(1e-3) == float(never(1_000_000))
    assert late.get_config() == LinearDecay(**late.get_config()).get_config()


def test_layers_compute_in_sixteen_bits_and_variables_and_losses_do_not():
    """Images and logits are float32, near those of float32 layers."""
    latents = tf.random.stateless_normal([3, SMOKE.latent_size], seed=[1, 2])
    labels = tf.constant([0, 3, 9])
    given = tf.random.stateless_uniform([3, 16, 16, 3], [3, 4], -1.0, 1.0)
    found = {}
    for dtype in ("float32", "mixed_bfloat16"):
        settings = make_config(compute_dtype=dtype)
        keras.utils.set_random_seed(2)  # of the last layers
        generator = Generator(settings, seed=0)
        discriminator = Discriminator(settings, seed=1)
        images = generator(latents, labels, training=True)
        logits = discriminator(given, labels)
        found[dtype] = images, logits

        assert {"float32"} == {
            variable.dtype
            for model in (generator, discriminator)
            for variable in model.variables
        }
        assert tf.float32 == images.dtype == logits.dtype
        layer_dtype = dtype.removeprefix("mixed_")
        assert layer_dtype == generator.last_conv.compute_dtype
        assert layer_dtype == discriminator.first_block.conv_1.compute_dtype
        assert layer_dtype == generator.blocks[0].norm_1.norm.compute_dtype
    assert "float32" == keras.config.dtype_policy().name
    for plain, mixed in zip(*found.values(), strict=True):
        # bfloat16 keeps 8 bits, a dozen layers deep.
        largest = 0.05 * float(tf.reduce_max(tf.abs(plain)))
        np.testing.assert_allclose(mixed, plain, rtol=0, atol=max(largest, 0.1))
        assert not np.array_equal(mixed, plain)
