"""Scores of a generator: its images against the training images, and their classes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from workloads import quality
from workloads.data import pipeline
from workloads.data.sources import TRAIN_SPLIT
from workloads.metrics.digits import open_digits
from workloads.metrics.evaluator import Evaluator, ends_of_scale
from workloads.metrics.extractor import to_uint8

from .study import CLASSIFIED, SCORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.data.sources import Source
    from workloads.metrics.extractor import FeatureExtractor
    from workloads.spec import QualityMetric

    from .config import SNGANConfig


_SCORES = tuple(metric.name for metric in SCORES)
_IMAGES_AT_ONCE = 100
_MOST_REFERENCES = 50_000
_FEWEST_HELD_OUT = 100


class Scorer:
    """Scores images of a generator, always from the same latents and classes."""

    def __init__(self, config: SNGANConfig, source: Source) -> None:
        """Opens the extractor and reads the reference, the training images."""
        self._config = config
        self._extractor = _open_extractor(config)
        self._evaluator = Evaluator(
            self._extractor,
            _read_images(source, TRAIN_SPLIT, config.image_size, _MOST_REFERENCES),
            reference_name=f"{source.name}/{TRAIN_SPLIT}",
            metrics=_SCORES,
        )
        # Real images that were not trained on have the best possible score.
        held_out = _read_images(
            source,
            source.evaluation_split,
            config.image_size,
            config.num_metric_examples,
        )
        self._scales = _describe_scales(self._evaluator, held_out)

    def score(
        self, generate: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[QualityMetric, ...]:
        """Returns FID, KID, Inception score and how often the class is recognised."""
        latents, labels = fixed_inputs(self._config, self._config.num_metric_examples)
        starts = range(0, len(labels), _IMAGES_AT_ONCE)
        parts = [
            generate(latents[i : i + _IMAGES_AT_ONCE], labels[i : i + _IMAGES_AT_ONCE])
            for i in starts
        ]
        images = to_uint8(np.concatenate(parts), low=-1.0, high=1.0)
        found = []
        for score in self._evaluator.score(images):
            metric = score.as_quality_metric()
            protocol = f"{metric.protocol}; {self._scales[metric.name]}"
            found.append(dataclasses.replace(metric, protocol=protocol))
        if self._config.extractor == "digits":
            # The extractor was trained only on real digits, and knows their classes.
            logits = self._extractor.extract(images).logits
            found += quality.of_examples(CLASSIFIED, [(logits, labels)])
        return tuple(found)


def fixed_inputs(
    config: SNGANConfig, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns latents and labels, the same in every call; classes alternate."""
    generator = np.random.default_rng(0)
    shape = (num_examples, config.latent_size)
    latents = generator.standard_normal(shape, dtype=np.float32)
    return latents, np.arange(num_examples, dtype=np.int32) % config.num_classes


def _open_extractor(config: SNGANConfig) -> FeatureExtractor:
    if config.extractor == "digits":
        return open_digits()
    from workloads.metrics.inception import open_inception

    return open_inception(config.extractor_weights)


def _describe_scales(evaluator: Evaluator, held_out: np.ndarray) -> dict[str, str]:
    """Describes for each score the values of real images and of noise."""
    if len(held_out) < _FEWEST_HELD_OUT:
        none = f"{len(held_out)} held-out images are too few to be scored"
        return dict.fromkeys(_SCORES, none)
    ends = ends_of_scale(evaluator, held_out)
    # Two digits: further ones depend on rounding, and so on the number of threads.
    return {
        data.estimate.name: (
            f"held-out images score {data.estimate.value:.2g} and noise "
            f"{noise.estimate.value:.2g} (n = {len(held_out)} each)"
        )
        for data, noise in zip(ends.data, ends.noise, strict=True)
    }


def _read_images(source: Source, split: str, image_size: int, most: int) -> np.ndarray:
    """Reads images of a split as input of the discriminator, but without noise."""
    config = pipeline.PipelineConfig(
        per_replica_batch_size=_IMAGES_AT_ONCE,
        image_size=image_size,
        seed=0,
        shuffle_buffer_size=1,
        num_threads=1,
        augmentation=pipeline.UNCHANGED,
    )
    batches: list[np.ndarray] = []
    for batch in pipeline.whole_split(source, split, config):
        batches.append(batch["image"].numpy()[batch["is_example"].numpy()])
        if sum(map(len, batches)) >= most:
            break
    return to_uint8(np.concatenate(batches)[:most], low=-1.0, high=1.0)


MOST_COLUMNS = 10
NUM_ROWS = 6
_GAP = 1  # pixels between images
_SMALLEST_SIZE = 32  # smaller images are enlarged, pixel by pixel


def encode(images: np.ndarray, num_columns: int) -> bytes:
    """Returns a grid as PNG."""
    pixels = to_uint8(images, low=-1.0, high=1.0)
    factor = max(_SMALLEST_SIZE // pixels.shape[1], 1)
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    size = pixels.shape[1] + _GAP
    num_rows = len(pixels) // num_columns
    canvas = np.full((num_rows * size, num_columns * size, 3), 255, np.uint8)
    for index, image in enumerate(pixels):
        row, column = divmod(index, num_columns)
        top, left = row * size, column * size
        canvas[top : top + size - _GAP, left : left + size - _GAP] = image
    encoded: bytes = tf.io.encode_png(canvas).numpy()
    return encoded
