"""Base of the programs of all workloads on images."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads import device_inputs, reused_batch
from workloads.catalog import SYNTHETIC
from workloads.common import conv_layout, precision
from workloads.data import audit, pipeline
from workloads.data.sources import open_source
from workloads.replicated import CatalogWorkload, ReplicatedProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import replicator
    from workloads.data import images
    from workloads.data.sources import Source
    from workloads.spec import SanityCheck


class ImageWorkload(CatalogWorkload):
    """A workload of the catalogue that reads labelled images.

    Args:
      name: The name in the catalogue.
      program: What it builds.
    """

    def __init__(self, name: str, program: type[ImageProgram]) -> None:
        super().__init__(name)
        self._program = program

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> ImageProgram:
        """Builds the program on ``replicator``; see ``Workload.build``."""
        config = self.make_config(preset, options)
        if per_replica_batch_size < 1:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        precision.set_tf32(replicator, is_on=config.tf32)
        conv_layout.choose(config.conv_layout)
        source = None if data == SYNTHETIC else open_source(data)
        if source is not None and source.num_classes > config.num_classes:
            raise ValueError(
                f"data {data!r} has {source.num_classes} classes, but the network has "
                f"{config.num_classes}: set option num_classes to at least "
                f"{source.num_classes}"
            )
        return self._program(
            replicator,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )

    def prepare(self, *, data: str) -> None:
        """Writes the embedded digits once per machine; see ``Workload.prepare``."""
        if data != SYNTHETIC:
            open_source(data)


class ImageProgram(ReplicatedProgram):
    """Feeds labelled images to a replicator, and checks the results.

    Attributes:
      source: The data set, or None for synthetic data.
      augmentation: How images are augmented and normalised; None for that of the data
        set.
    """

    augmentation: images.Augmentation | None = None

    def __init__(
        self,
        repl: replicator.Replicator,
        config: Any,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        """Creates the pipelines.

        Args:
          repl: The replicator.
          config: An ``ImageConfig``, of the class that the workload has.
          source: The data set, or None for synthetic data.
          per_replica_batch_size: Examples per replica and step.
          seed: Seed of order and augmentation.
        """
        super().__init__(repl, per_replica_batch_size=per_replica_batch_size)
        self.source = source
        self._pipeline = pipeline.PipelineConfig(
            per_replica_batch_size=self.pipeline_batch_size,
            image_size=config.image_size,
            seed=seed,
            shuffle_buffer_size=config.shuffle_buffer_size,
            num_threads=config.num_input_threads,
            is_cached=config.cache_data,
            input_dtype=config.input_dtype,
            augmentation=self.augmentation,
        )
        self._num_classes = config.num_classes
        self.compute_dtype = config.compute_dtype.removeprefix("mixed_")
        self._contexts: list[replicator.InputContext] = []
        self._inputs = device_inputs.make_iterator(repl, self._input_fn)
        # Ids stay on their devices until sanity(): reading them here would be measured.
        self._consumed: list[tuple[int, Any]] = []

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        if self.source is None:
            return pipeline.synthetic_dataset(
                self._pipeline, num_classes=self._num_classes
            )
        config = dataclasses.replace(
            self._pipeline,
            num_threads=device_inputs.num_threads(
                self._repl, context, self._pipeline.num_threads
            ),
        )
        return pipeline.train_dataset(self.source, context, config)

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns a replica's batch with normalised images; called in its step."""
        return pipeline.on_device(batch, self._pipeline.augmentation_of(self.source))

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without training on them."""
        while True:
            yield self._inputs.get_next()

    def _run(self, step: Callable[[Any], Any], num_steps: int) -> dict[str, Any]:
        """Runs steps on the next batches.

        Raises:
          ValueError: The data is unusable for training; the message says what to fix.
          Exception: Whatever else TensorFlow raises.
        """
        with self._explained():
            outputs: dict[str, Any] = self._repl.run(
                step, self._inputs, num_steps=num_steps
            )
        return outputs

    def read(self, num_steps: int = 1) -> None:
        """Reads the batches of steps; see ``ReplicatedProgram.read``."""
        with self._explained():
            super().read(num_steps)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what is wrong with the data, where a pipeline fails."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            reason = self.source and self.source.explain(error)
            if reason is None:
                raise
            raise ValueError(reason) from error

    def _finish(self, outputs: dict[str, Any], num_steps: int) -> float:
        """Waits for the device work of steps, keeps their ids, returns the mean loss.

        Args:
          outputs: ``loss`` and ``example_id``, per replica.
          num_steps: Steps that were run.
        """
        return self._keep(outputs, num_steps)()

    def _keep(self, outputs: dict[str, Any], num_steps: int) -> Callable[[], float]:
        """Keeps the ids of steps; returns a function that waits for their loss."""
        # Reading the losses waits for the replicas; updates are part of the same graph.
        read_loss = self._reader_of(outputs["loss"])
        self._num_steps += num_steps
        num_consumed = self._num_steps * self.global_batch_size
        is_first = not self._consumed
        if (self.source is not None and not self.reuses_batch) and (
            is_first or num_consumed <= self._first_epoch_size(self.source)
        ):
            self._consumed.append((num_consumed, outputs["example_id"]))
        return read_loss

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        checks = [*super().sanity()]
        if self.source is not None:
            checks.append(audit.check_shards(self.source, self._contexts))
            checks.append(
                reused_batch.not_checked(audit.CONSUMED)
                if self.reuses_batch
                else self._check_consumed(self.source)
            )
        return tuple(checks)

    def _check_consumed(self, source: Source) -> SanityCheck:
        steps = (
            (num_consumed, [int(i) for ids in per_replica for i in ids.numpy()])
            for num_consumed, per_replica in self._consumed
        )
        return audit.check_consumed(
            steps, first_epoch_size=self._first_epoch_size(source)
        )

    def _first_epoch_size(self, source: Source) -> int:
        # Every pipeline contributes the same number of examples to a step, so the
        # smallest shard ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        return source.num_train_examples // num_pipelines * num_pipelines
