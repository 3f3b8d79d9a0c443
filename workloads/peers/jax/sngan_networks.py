"""The networks of SN-GAN, as ``workloads/sngan`` defines them, in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from workloads.peers import exported

if TYPE_CHECKING:
    from workloads.peers.jax.layers import Layers, Weights

_OF_NORMS = 1e-12
"""Added to the lengths of vectors of spectral norms."""
_FIRST_SIZE = 4
_NUM_DOWNSAMPLED = 2
"""Blocks of the discriminator that halve the image, of layout ``cifar``."""


class Pass:
    """One pass through a network.

    Attributes:
      after: What the network keeps, after this pass.
    """

    def __init__(self, layers: Layers, weights: Weights, kept: Weights) -> None:
        """Begins.

        Args:
          layers: The layers.
          weights: What is trained, by our paths.
          kept: Moving statistics of the generator, [1, channels]; vectors of the
            spectral norms of the discriminator.
        """
        self._layers, self._weights, self._kept = layers, weights, kept
        self.after = dict(kept)

    def images(self, latents: jax.Array, labels: jax.Array) -> jax.Array:
        """Returns what the generator makes, in [-1, 1]."""
        of = self._weights
        flat = latents @ of["generator.dense.kernel"] + of["generator.dense.bias"]
        hidden = flat.reshape(len(latents), _FIRST_SIZE, _FIRST_SIZE, -1)
        hidden = jnp.moveaxis(hidden, -1, self._layers.channels)
        for path in exported.block_paths(self._weights, "generator"):
            inner = self._conditional(hidden, f"{path}.norm_1", labels)
            inner = self._conv(self._doubled(inner), f"{path}.conv_1")
            inner = self._conditional(inner, f"{path}.norm_2", labels)
            shortcut = self._doubled(self._conv(hidden, f"{path}.shortcut"))
            hidden = self._conv(inner, f"{path}.conv_2") + shortcut
        path = "generator.last_norm"
        hidden = self._norm(hidden, path, of[f"{path}.gamma"], of[f"{path}.beta"])
        return jnp.tanh(self._conv(hidden, "generator.last_conv"))

    def logits(self, images: jax.Array, labels: jax.Array) -> jax.Array:
        """Returns those of the discriminator."""
        hidden = images
        blocks = exported.block_paths(self._weights, "discriminator")
        paths = ["discriminator.first_block", *blocks]
        for index, path in enumerate(paths):
            inner = self._conv(
                jax.nn.relu(hidden) if index else hidden, f"{path}.conv_1"
            )
            inner = self._conv(jax.nn.relu(inner), f"{path}.conv_2")
            if index < _NUM_DOWNSAMPLED:
                inner, hidden = self._halved(inner), self._halved(hidden)
            if f"{path}.shortcut.kernel" in self._weights:
                hidden = self._conv(hidden, f"{path}.shortcut")
            hidden = inner + hidden
        features = jax.nn.relu(hidden).sum(axis=self._layers.places)
        path = "discriminator.embedding"  # the rows of its matrix are classes
        of_class = self._divided(path, self._weights[f"{path}.kernel"].T).T[labels]
        path = "discriminator.dense"
        logits = features @ self._divided(path, self._weights[f"{path}.kernel"])
        return logits[:, 0] + (features * of_class).sum(axis=1)

    def _conv(self, images: jax.Array, path: str) -> jax.Array:
        kernel = self._weights[f"{path}.kernel"]
        if f"{path}.u" in self._kept:
            kernel = self._divided(path, kernel)
        bias = self._layers.over(self._weights[f"{path}.bias"])
        return self._layers.conv(images, kernel) + bias

    def _divided(self, path: str, kernel: jax.Array) -> jax.Array:
        """Returns a kernel over its spectral norm, of which it takes a power step."""
        matrix = kernel.reshape(-1, kernel.shape[-1])
        fixed = lax.stop_gradient(matrix)
        v = _unit(fixed @ self._kept[f"{path}.u"])
        u = _unit(v @ fixed)
        self.after[f"{path}.u"] = u
        return kernel / (v @ matrix @ u)

    def _conditional(
        self, images: jax.Array, path: str, labels: jax.Array
    ) -> jax.Array:
        gamma, beta = (self._weights[f"{path}.{name}"] for name in ("gamma", "beta"))
        return self._norm(images, f"{path}.norm", gamma[labels], beta[labels])

    def _norm(
        self, images: jax.Array, path: str, gamma: jax.Array, beta: jax.Array
    ) -> jax.Array:
        """Returns the positive part of normalized images."""
        images, moved = self._layers.norm(images, gamma, beta, self._kept, path)
        self.after |= moved
        return jax.nn.relu(images)

    def _doubled(self, images: jax.Array) -> jax.Array:
        for axis in self._layers.places:
            images = jnp.repeat(images, 2, axis)
        return images

    def _halved(self, images: jax.Array) -> jax.Array:
        for axis in self._layers.places:
            shape = [*images.shape]
            shape[axis : axis + 1] = [shape[axis] // 2, 2]
            images = images.reshape(shape).mean(axis=axis + 1)
        return images


def _unit(vector: jax.Array) -> jax.Array:
    return vector / (jnp.linalg.norm(vector) + _OF_NORMS)
