"""Convolution and batch normalization of images, as a step is tuned (``DEFAULTS``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Mapping

_WEIGHT_OF_BATCH = 0.1
"""Of the moving statistics."""

Weights = dict[str, jax.Array]


class Layers:
    """Layers on images whose dimensions are in one order.

    Attributes:
      channels: The dimension of the channels.
      places: Those of height and width.
    """

    def __init__(self, tuning: Mapping[str, Any], *, epsilon: float) -> None:
        self._epsilon = epsilon
        self._size_of_dots: int = tuning["dots"]
        self._layout = "NCHW" if tuning["nchw"] else "NHWC"
        self.channels = self._layout.index("C")
        self.places = (self._layout.index("H"), self._layout.index("W"))

    def over(self, value: jax.Array) -> jax.Array:
        """Returns what each channel has, [..., channels], in the shape of images."""
        return jnp.expand_dims(value, (-2, -1) if self.channels == 1 else (-3, -2))

    def around(self, pad: int) -> list[tuple[int, int]]:
        """Returns what is added to each dimension: before and behind."""
        return [(pad, pad) if axis in self.places else (0, 0) for axis in range(4)]

    def conv(self, images: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        """The convolution with a kernel of odd size, half of it added around."""
        size = kernel.shape[0]
        pad = (size - 1) // 2
        if size <= self._size_of_dots:
            # With many channels faster than XLA's convolutions on CPUs.
            padded = jnp.pad(images, self.around(pad))
            columns = [
                self._seen(padded, (row, column), size, stride)
                for row in range(size)
                for column in range(size)
            ]
            product = "nchw,co->nohw" if self.channels == 1 else "nhwc,co->nhwo"
            return jnp.einsum(
                product,
                jnp.concatenate(columns, axis=self.channels),
                kernel.reshape(-1, kernel.shape[-1]),
            )
        return lax.conv_general_dilated(
            images,
            kernel,
            (stride, stride),
            [(pad, pad), (pad, pad)],
            dimension_numbers=(self._layout, "HWIO", self._layout),
        )

    def _seen(
        self, padded: jax.Array, at: tuple[int, int], size: int, stride: int
    ) -> jax.Array:
        """Returns what one element of a kernel is multiplied with."""
        found = [slice(None)] * 4
        for axis, first in zip(self.places, at, strict=True):
            last = padded.shape[axis] - size + first
            found[axis] = slice(first, last + 1, stride)
        return padded[tuple(found)]

    def norm(
        self,
        images: jax.Array,
        gamma: jax.Array,
        beta: jax.Array,
        moving: Mapping[str, jax.Array],
        path: str,
    ) -> tuple[jax.Array, Weights]:
        """Returns images normalized by the batch, and the moving statistics after it.

        Args:
          images: [examples, ...] in the layout of these layers.
          gamma: The scale, [channels], or of each example, [examples, channels].
          beta: The offset, likewise.
          moving: Moving statistics of the network, [1, channels] each.
          path: That of the layer whose statistics they are.
        """
        axes = tuple(axis for axis in range(4) if axis != self.channels)
        mean = images.mean(axis=axes)
        variance = jnp.square(images).mean(axis=axes) - jnp.square(mean)
        number = images.size // images.shape[self.channels]
        unbiased = variance * (number / (number - 1))
        after = {}
        for name, new in (("moving_mean", mean), ("moving_variance", unbiased)):
            old = moving[f"{path}.{name}"]
            after[f"{path}.{name}"] = old + _WEIGHT_OF_BATCH * (
                lax.stop_gradient(new) - old
            )
        scale = gamma * lax.rsqrt(variance + self._epsilon)
        return images * self.over(scale) + self.over(beta - mean * scale), after
