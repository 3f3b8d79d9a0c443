"""Arithmetic of the language model: multiply-adds of its matrix products.

Look-ups, norms, softmax, activations and the update are left out, as for ResNet-50
(``workloads/resnet50/flops.py``). Attention is counted as it is computed: over the
whole sequence, of which the mask hides half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.data.tensorflow_source.files import NUM_TOKENS

if TYPE_CHECKING:
    from workloads.transformer.config import TransformerConfig


def of_parts(config: TransformerConfig) -> list[int]:
    """Returns the multiply-adds of one token forward in each part of the model."""
    width = config.width
    weights = 4 * width**2 + 2 * width * config.feed_forward_width
    # Scores of all tokens of the sequence, and their weighted sum.
    attention = 2 * config.sequence_length * width
    return [0, *[weights + attention] * config.num_layers, width * NUM_TOKENS]


def multiply_adds(config: TransformerConfig) -> int:
    """Returns the multiply-adds of one token forward."""
    return sum(of_parts(config))


def training_flops(config: TransformerConfig) -> int:
    """Returns the floating-point operations of one token in a training step.

    Two per multiply-add. The backward pass has the gradients of both factors of each
    product: six per weight and token (PaLM, Chowdhery et al. 2022, appendix B).
    """
    return 2 * 3 * multiply_adds(config)


def variables_of_parts(config: TransformerConfig) -> list[list[int]]:
    """Returns the scalars of each trainable variable, by part of the model."""
    width, hidden = config.width, config.feed_forward_width
    norm = [width, width]
    block = [*norm, *[width**2] * 4, *norm]
    block += [width * hidden, hidden, hidden * width, width]
    head = [*norm, width * NUM_TOKENS, NUM_TOKENS]
    return [[NUM_TOKENS * width], *[block] * config.num_layers, head]


def num_parameters(config: TransformerConfig) -> int:
    """Returns the trainable scalars, counted without building the model."""
    return sum(map(sum, variables_of_parts(config)))
