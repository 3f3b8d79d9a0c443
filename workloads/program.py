"""Base of the programs of all workloads on images."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from workloads import device_inputs
from workloads.catalog import SYNTHETIC
from workloads.common import conv_layout, precision
from workloads.data import pipeline
from workloads.data.sources import open_source
from workloads.data_program import DataProgram
from workloads.replicated import CatalogWorkload

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tensorflow as tf

    import replicator
    from workloads.data import images
    from workloads.data.sources import Source


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


class ImageProgram(DataProgram):
    """Feeds labelled images to a replicator, and checks the results.

    Attributes:
      augmentation: How images are augmented and normalised; None for that of the data
        set.
    """

    source: Source | None
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
        super().__init__(
            repl, source=source, per_replica_batch_size=per_replica_batch_size
        )
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
        self._open_inputs()

    def _dataset(self, context: replicator.InputContext) -> tf.data.Dataset:
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
