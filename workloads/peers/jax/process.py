"""What both programs in JAX share: a device for each replica, data, normalization."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scaling_client  # of the harness, which puts its folder into the path
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from workloads.peers import EXPORT_VARIABLE, inputs

Weights = dict[str, jax.Array]
REPLICAS = "replicas"
_WEIGHT_OF_BATCH = 0.1
"""Of the moving statistics."""


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


def normalized(
    images: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
    moving: Mapping[str, jax.Array],
    path: str,
    *,
    epsilon: float,
) -> tuple[jax.Array, Weights]:
    """Returns images normalized by the batch, and the moving statistics after it.

    ``gamma`` and ``beta`` are [channels], or [examples, 1, 1, channels].
    """
    mean = images.mean(axis=(0, 1, 2))
    variance = jnp.square(images).mean(axis=(0, 1, 2)) - jnp.square(mean)
    number = images.size // images.shape[-1]
    unbiased = variance * (number / (number - 1))
    after = {}
    for name, new in (("moving_mean", mean), ("moving_variance", unbiased)):
        old = moving[f"{path}.{name}"]
        change = _WEIGHT_OF_BATCH * (lax.stop_gradient(new) - old)
        after[f"{path}.{name}"] = old + change
    scale = gamma * lax.rsqrt(variance + epsilon)
    return images * scale + (beta - mean * scale), after
