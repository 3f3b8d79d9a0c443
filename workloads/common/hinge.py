"""The hinge losses of generative adversarial networks, as pure functions."""

from __future__ import annotations

import tensorflow as tf


def discriminator_loss(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Returns mean(max(0, 1 - real)) + mean(max(0, 1 + fake)).

    Lim & Ye 2017; Miyato et al. 2018, equation 16, with the sign of a loss.
    """
    _check("discriminator_loss", "real_logits", real_logits)
    _check("discriminator_loss", "fake_logits", fake_logits)
    real = tf.reduce_mean(tf.nn.relu(1.0 - real_logits))
    return real + tf.reduce_mean(tf.nn.relu(1.0 + fake_logits))


def generator_loss(fake_logits: tf.Tensor) -> tf.Tensor:
    """Returns -mean(fake); Miyato et al. 2018, equation 17."""
    _check("generator_loss", "fake_logits", fake_logits)
    return -tf.reduce_mean(fake_logits)


def _check(loss: str, name: str, logits: tf.Tensor) -> None:
    if logits.shape.rank != 1 or logits.dtype != tf.float32:
        raise ValueError(
            f"{loss} needs {name} of shape [examples] and type float32, but got "
            f"{logits.shape} and {logits.dtype.name!r}; squeeze or cast them first"
        )
