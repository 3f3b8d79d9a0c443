"""Hinge losses against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from workloads.common import hinge


def test_losses_are_the_papers():
    """Equations 16 and 17 of Miyato et al. 2018, as losses; counts may differ."""
    real = np.array([2.0, 0.5, -1.0], np.float32)
    fake = np.array([-3.0, 0.25], np.float32)
    expected = np.maximum(0, 1 - real).mean() + np.maximum(0, 1 + fake).mean()

    discriminator = hinge.discriminator_loss(tf.constant(real), tf.constant(fake))
    generator = hinge.generator_loss(tf.constant(fake))

    assert pytest.approx(expected) == float(discriminator)
    assert pytest.approx(-fake.mean()) == float(generator)


def test_logits_beyond_the_margin_have_no_gradient():
    """Only examples within the margin teach the discriminator."""
    real, fake = tf.constant([2.0, 0.5]), tf.constant([-2.0, 0.5])
    with tf.GradientTape() as tape:
        tape.watch([real, fake])
        loss = hinge.discriminator_loss(real, fake)

    gradients = [g.numpy().tolist() for g in tape.gradient(loss, [real, fake])]

    assert [[0.0, -0.5], [0.0, 0.5]] == gradients


@pytest.mark.parametrize("wrong", [tf.zeros([2, 1]), tf.zeros([2], tf.bfloat16)])
def test_wrong_rank_and_type_are_refused(wrong):
    right = tf.zeros([2])
    with pytest.raises(ValueError, match="discriminator_loss needs real_logits of"):
        hinge.discriminator_loss(wrong, right)
    with pytest.raises(ValueError, match="discriminator_loss needs fake_logits of"):
        hinge.discriminator_loss(right, wrong)
    with pytest.raises(ValueError, match="generator_loss needs fake_logits of"):
        hinge.generator_loss(wrong)
