"""The losses of the three workloads with their gradients, as compiled functions."""

import numpy as np
import tensorflow as tf

from workloads.d4pg import learner
from workloads.resnet50 import model
from workloads.sngan import networks

NUM_CLASSES = 1000
NUM_ATOMS = 101
BATCH = 256


def _floats(*shape):
    generator = np.random.default_rng(0)
    return tf.constant(generator.standard_normal(shape, dtype=np.float32))


def test_cross_entropy_of_256_images(benchmark):
    """Of ``resnet50``."""
    logits = _floats(BATCH, NUM_CLASSES)
    labels = tf.range(BATCH) % NUM_CLASSES

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_mean(model.softmax_cross_entropy(labels, logits))
        return tape.gradient(loss, logits)

    assert (BATCH, NUM_CLASSES) == benchmark(lambda: gradient().numpy().shape)


def test_hinge_of_256_images(benchmark):
    """Of ``sngan``: both sides of the discriminator."""
    real, fake = _floats(BATCH), _floats(BATCH)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch((real, fake))
            loss = networks.discriminator_loss(real, fake)
        return tape.gradient(loss, (real, fake))

    assert 2 == len(benchmark(lambda: [part.numpy() for part in gradient()]))


def test_backup_and_critic_loss_of_256_transitions(benchmark):
    """Of ``d4pg``: 101 atoms are moved, projected and compared."""
    atoms = tf.constant(learner.make_atoms(-150.0, 150.0, NUM_ATOMS))
    logits, following = _floats(BATCH, NUM_ATOMS), _floats(BATCH, NUM_ATOMS)
    reward, discount = _floats(BATCH), tf.fill([BATCH], 0.95)

    @tf.function
    def gradient():
        target, _ = learner.backup(reward, discount, tf.nn.softmax(following), atoms)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_mean(learner.critic_loss(logits, target))
        return tape.gradient(loss, logits)

    assert (BATCH, NUM_ATOMS) == benchmark(lambda: gradient().numpy().shape)
