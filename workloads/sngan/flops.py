"""Arithmetic of SN-GAN: multiply-adds of convolutions and dense layers.

Norms, activations, lookups of classes and updates are left out, as for ResNet-50
(``workloads/resnet50/flops.py``), and so are spectral norms, whose cost does not depend
on the number of images.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from workloads.sngan.config import FIRST_SIZE
from workloads.sngan.networks import NUM_CHANNELS, discriminator_widths

if TYPE_CHECKING:
    from workloads.sngan.config import SNGANConfig

_AREA = 9  # of a 3x3 kernel


def generator_multiply_adds(config: SNGANConfig) -> tuple[int, int]:
    """Returns the multiply-adds of one image forward, and those of the first layer."""
    channels = config.block_channels
    first = config.latent_size * FIRST_SIZE**2 * channels[0]
    total, size = first, FIRST_SIZE
    for num_inputs, num_outputs in itertools.pairwise(channels):
        total += num_inputs * num_outputs * size**2  # the shortcut, before upsampling
        size *= 2
        total += _AREA * (num_inputs + num_outputs) * num_outputs * size**2
    return total + _AREA * channels[-1] * NUM_CHANNELS * size**2, first


def discriminator_multiply_adds(config: SNGANConfig) -> tuple[int, int]:
    """Returns the multiply-adds of one image forward, and those that read pixels."""
    (width, _), *others = discriminator_widths(config)
    size = config.image_size
    pixels = _AREA * NUM_CHANNELS * width * size**2
    pixels += NUM_CHANNELS * width * (size // 2) ** 2
    total = pixels + _AREA * width * width * size**2
    size //= 2
    num_inputs = width
    for num_outputs, downsamples in others:
        total += _AREA * num_inputs * (num_inputs + num_outputs) * size**2
        size = size // 2 if downsamples else size
        if downsamples or num_inputs != num_outputs:
            total += num_inputs * num_outputs * size**2
        num_inputs = num_outputs
    return total + num_inputs, pixels


def training_flops(config: SNGANConfig) -> int:
    """Returns the floating-point operations of one real image in a training step.

    Two per multiply-add. Every step generates an image per real one, without a
    gradient, and trains the discriminator on both, whose pixels need no gradient. Every
    ``num_discriminator_steps``-th step trains the generator, through a discriminator
    whose weights need no gradient.
    """
    generator, latents = generator_multiply_adds(config)
    discriminator, pixels = discriminator_multiply_adds(config)
    of_discriminator = generator + 2 * (3 * discriminator - pixels)
    of_generator = 3 * generator - latents + 2 * discriminator
    share = config.generator_batch_factor / config.num_discriminator_steps
    return round(2 * (of_discriminator + share * of_generator))
