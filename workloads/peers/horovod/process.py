"""One process of a peer in Horovod: its cores, its group, and its run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import scaling_client  # of the harness, which puts its folder into the path
import tensorflow as tf

from workloads.peers import cores, exported, inputs
from workloads.peers.names import EXPORT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULTS: dict[str, Any] = {
    "own_cores": True,
    "fusion_mb": 128,
    "cycle_ms": 1.0,
    "groups": 0,
    "jit": False,
}
"""How it is tuned; ``README.md`` of the peers has what each brings."""


class Process:
    """A replica: what it begins with, how it is tuned, and its run.

    Attributes:
      export: What it begins with.
      tuning: As ``DEFAULTS``.
      run: That of the client.
      is_alone: Whether replicas do not communicate: one, or a control.
    """

    def __init__(self) -> None:
        self.tuning = inputs.tuning(sys.argv[1:], DEFAULTS)
        # Read when Horovod's background thread starts.
        fusion_bytes = self.tuning["fusion_mb"] * 2**20
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(fusion_bytes)
        os.environ["HOROVOD_CYCLE_TIME"] = str(self.tuning["cycle_ms"])
        # It stands between its turns, for longer than the 30 s of its default.
        os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "3600"
        self.rank, self.num_ranks = scaling_client.find_rank()
        self._choose_cores()
        self.export = exported.read(Path(os.environ[EXPORT_VARIABLE]))
        self.run = scaling_client.connect(
            unit="images", num_parameters=exported.num_parameters(self.export)
        )
        hvd.init()
        self.is_alone = self.run.controls.nosync or self.num_ranks == 1

    def _choose_cores(self) -> None:
        """Takes an equal share of the cores, and as many threads."""
        share = cores.share_of(
            self.rank, self.num_ranks, is_taken=self.tuning["own_cores"]
        )
        tf.config.threading.set_intra_op_parallelism_threads(share)
        tf.config.threading.set_inter_op_parallelism_threads(share)

    def compiled(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        """Returns a function as it is called: by XLA, if that is how it is tuned."""
        if not self.tuning["jit"]:
            return function
        made: Callable[..., tf.Tensor] = tf.function(
            function, jit_compile=True, autograph=False
        )
        return made

    def gradients(
        self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]
    ) -> list[tf.Tensor]:
        """Returns the gradients of a loss, averaged over the replicas."""
        if not self.is_alone:
            tape = hvd.DistributedGradientTape(tape, num_groups=self.tuning["groups"])
        found: list[tf.Tensor] = tape.gradient(loss, variables)
        return found

    def batches(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields images and labels."""
        for images, labels in inputs.batches(
            self.export,
            process=self.rank,
            num_processes=self.num_ranks,
            seed=self.run.seed,
            is_repeated=self.run.controls.synthetic,
        ):
            yield tf.constant(images), tf.constant(labels)

    def draws(self) -> Iterator[dict[str, tf.Tensor]]:
        """Yields what each step of SN-GAN draws, by name."""
        for found in inputs.sngan_draws(
            self.export,
            process=self.rank,
            num_processes=self.num_ranks,
            seed=self.run.seed,
        ):
            yield {name: tf.constant(value) for name, value in found.items()}

    def end(self) -> None:
        """Leaves the group."""
        hvd.shutdown()
