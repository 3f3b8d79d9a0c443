"""Generator and discriminator: published sizes, class conditioning, spectral norms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from workloads import catalog
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


def test_the_rate_falls_linearly_to_zero():
    """From the requested fraction of steps, and never where that is one."""
    late = LinearDecay(learning_rate=1e-3, num_steps=450, decay_start=400 / 450)
    never = LinearDecay(learning_rate=1e-3, num_steps=10, decay_start=1.0)

    assert [1e-3, 1e-3, 5e-4, 0.0, 0.0] == pytest.approx(
        [float(late(step)) for step in (0, 400, 425, 450, 500)], abs=1e-9
    )
    assert pytest.approx(1e-3) == float(never(1_000_000))
    assert late.get_config() == LinearDecay(**late.get_config()).get_config()
