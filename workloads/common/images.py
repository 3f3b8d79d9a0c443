"""Labelled images as a training reads them: batches, normalisation, held-out split."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from workloads.data import pipeline
from workloads.data.sources import open_source
from workloads.spec import SYNTHETIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import tensorflow as tf

    import replicator


class Images:
    """A data set of labelled images, or random ones.

    Attributes:
      source: The data set; None for synthetic images.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: Any,
        *,
        data: str,
        seed: int,
        augmentation: pipeline.Augmentation | None = None,
    ) -> None:
        """Opens the data; ``augmentation`` None is that of the data set."""
        self._config, self._feeds_gpus = config, repl.feeds_gpus
        self.source = None if data == SYNTHETIC else open_source(data)
        if self.source is not None and self.source.num_classes > config.num_classes:
            raise ValueError(
                f"data {data!r} has {self.source.num_classes} classes, but the network "
                f"has {config.num_classes}: set option num_classes to at least "
                f"{self.source.num_classes}"
            )
        self._pipeline = pipeline.PipelineConfig(
            per_replica_batch_size=1,
            image_size=config.image_size,
            seed=seed,
            shuffle_buffer_size=config.shuffle_buffer_size,
            num_threads=config.num_input_threads,
            is_cached=config.cache_data,
            input_dtype=config.input_dtype,
            augmentation=augmentation,
        )

    @property
    def augmentation(self) -> pipeline.Augmentation:
        """How training images are augmented, and all are normalised."""
        return self._pipeline.augmentation_of(self.source)

    def pipeline_config(
        self, context: replicator.InputContext, num_examples: int
    ) -> pipeline.PipelineConfig:
        """Returns the settings of one input pipeline, whose batches are this large."""
        # A GPU takes about a hundred times as many examples per second as a CPU core,
        # and one pipeline feeds all GPUs of a process.
        num_fed = context.num_replicas_in_sync // context.num_input_pipelines
        threads = self._pipeline.num_threads
        return dataclasses.replace(
            self._pipeline,
            per_replica_batch_size=num_examples,
            num_threads=threads * max(1, num_fed) if self._feeds_gpus else threads,
        )

    def batches(
        self, context: replicator.InputContext, num_examples: int
    ) -> tf.data.Dataset:
        """Returns shuffled and augmented batches of this pipeline's share, endless."""
        config = self.pipeline_config(context, num_examples)
        if self.source is None:
            return pipeline.synthetic_dataset(
                config, num_classes=self._config.num_classes
            )
        return pipeline.train_dataset(self.source, context, config)

    def normalised(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns a replica's batch with normalised images; called in its step."""
        return pipeline.on_device(batch, self.augmentation)

    def predictions(
        self, predict: Callable[[tf.Tensor], tf.Tensor]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields what is predicted of the held-out split, and its labels."""
        if self.source is None:  # random images have no labels to be found
            return
        config = pipeline.PipelineConfig(
            per_replica_batch_size=self._config.evaluation_batch_size,
            image_size=self._config.image_size,
            seed=0,
            shuffle_buffer_size=1,
            num_threads=self._config.num_input_threads,
        )
        for batch in pipeline.evaluation_dataset(self.source, config):
            is_example = batch["is_example"].numpy()  # the last batch is padded
            predicted = predict(batch["image"]).numpy()
            yield predicted[is_example], batch["label"].numpy()[is_example]
