"""Base of the programs that classify images: how they are evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads import quality
from workloads.data import pipeline
from workloads.program import ImageProgram
from workloads.resnet50.config import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    import replicator
    from workloads.data.sources import Source
    from workloads.spec import QualityMetric


class ClassifierProgram(ImageProgram):
    """Measures a classifier on the whole held-out split."""

    model: Any  # A Keras model; [n, size, size, 3] to [n, num_classes].

    def __init__(
        self,
        repl: replicator.Replicator,
        config: Any,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        """Creates the pipelines; see ``ImageProgram``."""
        super().__init__(
            repl,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )
        self._config = config
        self._predict = tf.function(
            lambda images: self.model(images, training=False), autograph=False
        )

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures all ``METRICS`` on the whole held-out split.

        Runs on one device, with the moving statistics of batch norm. Synthetic data has
        no held-out split, so it has no quality.
        """
        if self.source is None:
            return ()
        found = quality.of_examples(METRICS, self._predictions(self.source))
        num_examples = found[0].num_examples
        expected = self.source.num_evaluation_examples
        if num_examples != expected:
            raise RuntimeError(
                f"evaluation counted {num_examples} examples of {self.source.name!r}, "
                f"but its {self.source.evaluation_split!r} split has {expected}"
            )
        return found

    def _predictions(self, source: Source) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the logits and labels of the held-out split, batch by batch."""
        for batch in pipeline.evaluation_dataset(source, self._evaluation_pipeline()):
            is_example = batch["is_example"].numpy()
            logits = self._predict(batch["image"]).numpy()
            yield logits[is_example], batch["label"].numpy()[is_example]

    def _evaluation_pipeline(self) -> pipeline.PipelineConfig:
        return pipeline.PipelineConfig(
            per_replica_batch_size=self._config.evaluation_batch_size,
            image_size=self._config.image_size,
            seed=0,
            shuffle_buffer_size=1,
            num_threads=self._config.num_input_threads,
        )
