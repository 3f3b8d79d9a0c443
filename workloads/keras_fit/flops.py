"""Arithmetic of a Keras model: multiply-adds of its convolutions and dense layers.

Norms, activations, pooling and the update are left out, as is usual for model FLOPs
(PaLM, Chowdhery et al. 2022, appendix B).
"""

from __future__ import annotations

import math
from typing import Any

import keras

from workloads.keras_fit.models import layers_of

_KERNELS = (
    keras.layers.Conv2D,
    keras.layers.Dense,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
)
_NO_PRODUCTS = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Rescaling,
    keras.Model,
)


def training_flops(model: Any) -> int | None:
    """Returns the floating-point operations of one example in a training step.

    Two per multiply-add; three passes, less the gradient of the pixels.
    """
    found = []
    for layer in layers_of(model):
        if isinstance(layer, _KERNELS):
            try:
                output = layer.output.shape
            except AttributeError:  # a model of one's own class, without a graph
                return None
            found.append(
                sum(
                    math.prod(weight.shape) * math.prod(output[1:-1])
                    for weight in layer.trainable_weights
                    if "kernel" in weight.name
                )
            )
        elif layer.weights and not isinstance(layer, _NO_PRODUCTS):
            return None
    return 2 * (3 * sum(found) - found[0]) if found else None
