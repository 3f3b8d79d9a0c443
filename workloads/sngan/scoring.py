"""Scores of a generator: its images against the training images, and their classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from workloads.data.sources import TRAIN_SPLIT
from workloads.metrics import quality
from workloads.metrics.digits import open_digits
from workloads.metrics.evaluator import Evaluator, open_inception, to_uint8

from .study import CLASSIFIED, SCORES

if TYPE_CHECKING:
    from workloads.data.images import Images
    from workloads.spec import QualityMetric

    from .study import SNGANConfig

    Generate = Callable[[np.ndarray, np.ndarray], np.ndarray]


_IMAGES_AT_ONCE = 100
_MOST_REFERENCES = 50_000
_FEWEST_HELD_OUT = 100


class Scorer:
    """Scores images of a generator, always from the same latents and classes."""

    def __init__(self, config: SNGANConfig, images: Images) -> None:
        source = images.source
        assert source is not None  # random images have no quality
        self._config = config
        self._extractor = (
            open_digits()
            if config.extractor == "digits"
            else open_inception(config.extractor_weights)
        )
        self._evaluator = Evaluator(
            self._extractor,
            _read_images(images, TRAIN_SPLIT, _MOST_REFERENCES),
            reference_name=f"{source.name}/{TRAIN_SPLIT}",
        )
        # Real images that were not trained on have the best possible score.
        most = config.num_metric_examples
        held_out = _read_images(images, source.evaluation_split, most)
        self._scales = _describe_scales(self._evaluator, held_out)

    def score(self, generate: Generate) -> tuple[QualityMetric, ...]:
        """Returns FID, KID, Inception score and how often the class is recognised."""
        latents, labels = fixed_inputs(self._config, self._config.num_metric_examples)
        starts = range(0, len(labels), _IMAGES_AT_ONCE)
        parts = [
            generate(latents[i : i + _IMAGES_AT_ONCE], labels[i : i + _IMAGES_AT_ONCE])
            for i in starts
        ]
        images = to_uint8(np.concatenate(parts), low=-1.0, high=1.0)
        extracted = self._extractor.extract(images)
        scores = []
        for metric in self._evaluator.score(images, extracted):
            protocol = f"{metric.protocol}; {self._scales[metric.name]}"
            scores.append(dataclasses.replace(metric, protocol=protocol))
        if self._config.extractor == "digits":
            # The extractor was trained only on real digits, and knows their classes.
            scores += quality.example_metrics(CLASSIFIED, [(extracted[1], labels)])
        return tuple(scores)


def fixed_inputs(
    config: SNGANConfig, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns latents and labels, the same in every call; classes alternate."""
    generator = np.random.default_rng(0)
    shape = (num_examples, config.latent_size)
    latents = generator.standard_normal(shape, dtype=np.float32)
    return latents, np.arange(num_examples, dtype=np.int32) % config.num_classes


def _describe_scales(evaluator: Evaluator, held_out: np.ndarray) -> dict[str, str]:
    """Describes for each score the values of real images and of noise."""
    if len(held_out) < _FEWEST_HELD_OUT:
        none = f"{len(held_out)} held-out images are too few to be scored"
        return {metric.name: none for metric in SCORES}
    levels = np.random.default_rng(0).integers(0, 256, held_out.shape, np.uint8)
    # Two digits: further ones depend on rounding, and so on the number of threads.
    return {
        data.name: (
            f"held-out images score {data.value:.2g} and noise {noise.value:.2g} "
            f"(n = {len(held_out)} each)"
        )
        for data, noise in zip(*map(evaluator.score, (held_out, levels)), strict=True)
    }


def _read_images(images: Images, split: str, most: int) -> np.ndarray:
    """Reads images of a split as input of the discriminator, but without noise."""
    batches: list[np.ndarray] = []
    for batch in images.whole_split(split, _IMAGES_AT_ONCE):
        batches.append(batch["image"].numpy()[batch["is_example"].numpy()])
        if sum(map(len, batches)) >= most:
            break
    return to_uint8(np.concatenate(batches)[:most], low=-1.0, high=1.0)


_MOST_COLUMNS = 10
_NUM_ROWS = 6
_GAP = 1  # pixels between images
_SMALLEST_SIZE = 32  # smaller images are enlarged, pixel by pixel


def picture(config: SNGANConfig, generate: Generate) -> bytes:
    """Returns a grid of generated images as PNG: a column per class."""
    num_columns = min(config.num_classes, _MOST_COLUMNS)
    latents, labels = fixed_inputs(config, num_columns * _NUM_ROWS)
    pixels = to_uint8(generate(latents, labels % num_columns), low=-1.0, high=1.0)
    factor = max(_SMALLEST_SIZE // config.image_size, 1)
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    around = ((0, 0), (0, _GAP), (0, _GAP), (0, 0))
    pixels = np.pad(pixels, around, constant_values=255)
    size = pixels.shape[1]
    rows = pixels.reshape(_NUM_ROWS, num_columns, size, size, 3).swapaxes(1, 2)
    grid = rows.reshape(_NUM_ROWS * size, num_columns * size, 3)
    encoded: bytes = tf.io.encode_png(grid).numpy()
    return encoded
