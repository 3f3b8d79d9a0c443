"""The processes of a peer in JAX: one with all devices, or one for each replica."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scaling_client  # of the harness, which puts its folder into the path
from jax.sharding import NamedSharding, PartitionSpec

from workloads.peers import catalog, inputs
from workloads.peers.catalog import EXPORT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

REPLICAS = "replicas"
_PORT = "PEER_PORT"
DEFAULTS: dict[str, Any] = {
    "processes": False,
    "donate": True,
    "xla_flags": "",
    "nchw": False,
    "dots": 7,
}
"""How it is tuned; ``README.md`` of the peers has what each brings."""


class Process:
    """Some of the replicas: what they begin with, how they are tuned, and their run.

    Attributes:
      export: What they begin with.
      tuning: By the names of ``DEFAULTS``.
      run: That of the client.
      num_replicas: Of all processes.
      is_alone: Whether replicas do not communicate: one, or a control.
    """

    def __init__(self, **own: Any) -> None:
        self.tuning = inputs.tuning(sys.argv[1:], {**DEFAULTS, **own})
        self.export = inputs.Export.read(Path(os.environ[EXPORT_VARIABLE]))
        self.num_replicas = int(self.export.settings["num_replicas"])
        self._num_processes = self.num_replicas if self.tuning["processes"] else 1
        self._children: list[subprocess.Popen[bytes]] = []
        if self._num_processes > 1 and _PORT not in os.environ:
            self._start_others()
        self._rank, _ = scaling_client.find_rank()
        flags = [os.environ.get("XLA_FLAGS", ""), self.tuning["xla_flags"]]
        os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
        jax.config.update("jax_platforms", "cpu")
        self._take_devices()
        self.run = scaling_client.connect(
            unit="images", num_parameters=self.export.num_parameters
        )
        self._share = inputs.Share(
            *(self.export, self._rank, self._num_processes, self.run.seed),
            is_repeated=self.run.controls.synthetic,
        )
        self.is_alone = self.run.controls.nosync or self.num_replicas == 1
        self._mesh = jax.make_mesh((self.num_replicas,), (REPLICAS,))

    def _start_others(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ[_PORT] = str(probe.getsockname()[1])
        os.environ["WORLD_SIZE"] = str(self._num_processes)
        for rank in range(1, self._num_processes):
            os.environ["RANK"] = str(rank)
            self._children.append(subprocess.Popen(sys.orig_argv))
        os.environ["RANK"] = "0"

    def _take_devices(self) -> None:
        """Makes the devices of this process; one of several has a share of cores."""
        if self._num_processes == 1:
            jax.config.update("jax_num_cpu_devices", self.num_replicas)
            return
        catalog.share_of(self._rank, self._num_processes)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{os.environ[_PORT]}", self._num_processes, self._rank
        )

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step that runs on every replica.

        It takes what is equal on all replicas, what each has of its own, a batch (a
        tuple), and numbers; it returns the first two and losses, [1].
        """
        equal, own = PartitionSpec(), PartitionSpec(REPLICAS)
        mapped = jax.shard_map(
            step,
            mesh=self._mesh,
            in_specs=(equal, own, own, equal),
            out_specs=(equal, own, own),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=(0, 1) if self.tuning["donate"] else ())

    def mean(self, values: Any) -> Any:
        """Returns the mean over replicas; the values where they do not communicate."""
        return values if self.is_alone else jax.lax.pmean(values, REPLICAS)

    def placed(self, values: Any, *, is_own: bool) -> Any:
        """Returns arrays on all devices: equal ones, or a part for each replica."""
        spec = PartitionSpec(REPLICAS) if is_own else PartitionSpec()
        sharding = NamedSharding(self._mesh, spec)
        return jax.tree.map(
            lambda value: jax.make_array_from_process_local_data(sharding, value),
            values,
        )

    def for_each_replica(self, value: np.ndarray) -> np.ndarray:
        """Returns copies of a value for own replicas, [replicas, ...]."""
        count = self.num_replicas // self._num_processes
        return np.stack([value] * count)

    def batches(self) -> Any:
        """Yields images and labels of own replicas, on their devices."""
        for images, labels in self._share.batches():
            yield self.placed((self._in_layout(images), labels), is_own=True)

    def _in_layout(self, images: np.ndarray) -> np.ndarray:
        return images.transpose(0, 3, 1, 2) if self.tuning["nchw"] else images

    def draws(self) -> Any:
        """Yields what each step of SN-GAN draws, by name, on own devices."""
        for found in self._share.draws():
            pixels = self._in_layout(found["pixels"])
            yield self.placed({**found, "pixels": pixels}, is_own=True)

    def own_mean(self, losses: Any) -> float:
        """Waits for the losses of a step; returns the mean over own replicas."""
        parts = [np.asarray(part.data) for part in losses.addressable_shards]
        return float(np.mean(parts))

    def end(self) -> None:
        """Waits for the other processes."""
        if self._num_processes > 1:
            jax.distributed.shutdown()
        for child in self._children:
            child.wait()
