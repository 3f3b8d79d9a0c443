"""JAX: ``shard_map`` over the devices of a process; and the layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scaling_client  # of the harness, which puts its folder into the path
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from workloads.peers import EXPORT_VARIABLE, inputs, networks

if TYPE_CHECKING:
    from collections.abc import Callable

Weights = dict[str, jax.Array]
REPLICAS = "replicas"
_NORM_EPSILON = 1e-12
"""Of lengths of vectors of spectral norms."""


class Process:
    """The replicas, each on a device of this process, and the run that they are in."""

    def __init__(self) -> None:
        self.export = inputs.Export.read(Path(os.environ[EXPORT_VARIABLE]))
        self.num_replicas = int(self.export.settings["num_replicas"])
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", self.num_replicas)
        self.run = scaling_client.connect(
            unit="images", num_parameters=self.export.num_parameters
        )
        self._share = inputs.Share(
            *(self.export, 0, 1, self.run.seed), is_repeated=self.run.controls.synthetic
        )
        self.is_alone = self.run.controls.nosync or self.num_replicas == 1
        self._mesh = jax.make_mesh((self.num_replicas,), (REPLICAS,))

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step that runs on every replica.

        It takes what is equal on all, what each has of its own, a batch and numbers; it
        returns the first two and losses, [1].
        """
        equal, own = PartitionSpec(), PartitionSpec(REPLICAS)
        mapped = jax.shard_map(
            step,
            mesh=self._mesh,
            in_specs=(equal, own, own, equal),
            out_specs=(equal, own, own),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=(0, 1))

    def mean(self, values: Any) -> Any:
        """Returns the mean over replicas; the values where they do not communicate."""
        return values if self.is_alone else lax.pmean(values, REPLICAS)

    def placed(self, values: Any, *, is_own: bool) -> Any:
        """Returns arrays on all devices: equal ones, or a part for each replica."""
        spec = PartitionSpec(REPLICAS) if is_own else PartitionSpec()
        return jax.device_put(values, NamedSharding(self._mesh, spec))

    def moving(self) -> Weights:
        weights = {
            name: np.stack([value] * self.num_replicas)
            for name, value in self.export.part("weights").items()
            if inputs.is_moving(name)
        }
        return self.placed(weights, is_own=True)

    def batches(self) -> Any:
        for batch in self._share.batches():
            yield self.placed(batch, is_own=True)

    def draws(self) -> Any:
        for draws in self._share.draws():
            yield self.placed(draws, is_own=True)


class Pass(networks.Networks):
    """A pass through networks; ``after`` has what is kept for the next step."""

    pixels = 1, 2
    relu, tanh = staticmethod(jax.nn.relu), staticmethod(jnp.tanh)

    def __init__(self, weights: Weights, kept: Weights, epsilon: float) -> None:
        self.weights, self.kept, self._epsilon = weights, kept, epsilon
        self.after = dict(kept)

    def conv_norm(self, images: jax.Array, path: str, stride: int = 1) -> jax.Array:
        """As a product of matrices: three times as fast on CPUs as XLA's."""
        kernel = self.weights[f"{path}.kernel"]
        size = kernel.shape[0]
        around = ((size - 1) // 2, (size - 1) // 2)
        padded = jnp.pad(images, [(0, 0), around, around, (0, 0)])
        height, width = (length - size + 1 for length in padded.shape[1:3])
        columns = [
            padded[:, row : row + height : stride, column : column + width : stride]
            for row in range(size)
            for column in range(size)
        ]
        rows = jnp.concatenate(columns, axis=-1)
        outputs = rows @ kernel.reshape(-1, kernel.shape[-1])
        return self.norm(outputs, f"{path}.norm")

    def conv(self, images: jax.Array, path: str) -> jax.Array:
        """With few channels, a product of matrices is half as fast."""
        layouts = ("NHWC", "HWIO", "NHWC")
        kernel, bias = self.kernel(path), self.weights[f"{path}.bias"]
        outputs = lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=layouts
        )
        return outputs + bias

    def dense(self, values: jax.Array, path: str) -> jax.Array:
        outputs, bias = values @ self.kernel(path), self.weights.get(f"{path}.bias")
        return outputs if bias is None else outputs + bias

    def embedding(self, labels: jax.Array, path: str) -> jax.Array:
        return self.divided(self.weights[f"{path}.kernel"].T, path).T[labels]

    def norm(self, images: jax.Array, path: str) -> jax.Array:
        gamma, beta = (self.weights[f"{path}.{name}"] for name in ("gamma", "beta"))
        return self._normalized(images, path, gamma, beta)

    def conditional_norm(
        self, images: jax.Array, path: str, labels: jax.Array
    ) -> jax.Array:
        gamma, beta = (
            self.weights[f"{path}.{name}"][labels][:, None, None]
            for name in ("gamma", "beta")
        )
        return self._normalized(images, f"{path}.norm", gamma, beta)

    def _normalized(
        self, images: jax.Array, path: str, gamma: jax.Array, beta: jax.Array
    ) -> jax.Array:
        """``gamma`` and ``beta`` are [channels], or [examples, 1, 1, channels]."""
        mean = images.mean(axis=(0, 1, 2))
        variance = jnp.square(images).mean(axis=(0, 1, 2)) - jnp.square(mean)
        number = images.size // images.shape[-1]
        unbiased = variance * (number / (number - 1))
        for name, new in (("moving_mean", mean), ("moving_variance", unbiased)):
            old = self.kept[f"{path}.{name}"]
            change = networks.WEIGHT_OF_BATCH * (lax.stop_gradient(new) - old)
            self.after[f"{path}.{name}"] = old + change
        scale = gamma * lax.rsqrt(variance + self._epsilon)
        return images * scale + (beta - mean * scale)

    def divided(self, kernel: jax.Array, path: str) -> jax.Array:
        matrix = kernel.reshape(-1, kernel.shape[-1])
        fixed = lax.stop_gradient(matrix)
        v = _unit(fixed @ self.kept[f"{path}.u"])
        u = _unit(v @ fixed)
        self.after[f"{path}.u"] = u
        return kernel / (v @ matrix @ u)

    def first_map(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(len(flat), networks.FIRST_SIZE, networks.FIRST_SIZE, -1)

    def pool(self, images: jax.Array) -> jax.Array:
        around = [(0, 0), (1, 1), (1, 1), (0, 0)]
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        return lax.reduce_window(images, -jnp.inf, lax.max, window, strides, around)

    def doubled(self, images: jax.Array) -> jax.Array:
        return jnp.repeat(jnp.repeat(images, 2, axis=1), 2, axis=2)

    def halved(self, images: jax.Array) -> jax.Array:
        examples, height, width, channels = images.shape
        shape = (examples, height // 2, 2, width // 2, 2, channels)
        return images.reshape(shape).mean(axis=(2, 4))


def _unit(vector: jax.Array) -> jax.Array:
    return vector / (jnp.linalg.norm(vector) + _NORM_EPSILON)
