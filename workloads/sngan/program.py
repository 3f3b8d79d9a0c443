"""SN-GAN as the harness steps it: scores, pictures, and draws that can be matched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.controls import own_rows
from workloads.program import StepProgram
from workloads.sngan import scoring
from workloads.sngan.networks import NUM_CHANNELS
from workloads.sngan.scoring import Scorer, fixed_inputs
from workloads.sngan.train import DISCRIMINATOR, GENERATOR, PIXEL_STEP, Noise

if TYPE_CHECKING:
    import numpy as np

    import replicator
    from workloads.sngan.study import SNGANConfig
    from workloads.spec import QualityMetric

_PIXELS = 3  # the stream of noise, besides those of the two networks


class MatchedNoise(Noise):
    """Noise of all replicas, the same in every step; each replica has its rows."""

    def __init__(self, config: SNGANConfig, num_replicas: int) -> None:
        super().__init__(config)
        self._num_replicas = num_replicas

    def inputs(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns this replica's latents and classes."""
        latents, labels = map(own_rows, self.inputs_of_all(count, whose))
        return latents, labels

    def pixels(self, images: tf.Tensor) -> tf.Tensor:
        """Returns this replica's noise of pixels."""
        return own_rows(self.pixels_of_all(*images.shape))

    def inputs_of_all(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns latents and classes of all replicas."""
        config, seed = self._config, [whose, 0]
        total = count * self._num_replicas
        return (
            tf.random.stateless_normal([total, config.latent_size], seed),
            tf.random.stateless_uniform([total], seed, 0, config.num_classes, tf.int32),
        )

    def pixels_of_all(self, count: int, *shape: int) -> tf.Tensor:
        """Returns noise of pixels of all replicas."""
        total = count * self._num_replicas
        return tf.random.stateless_uniform(
            [total, *shape], [_PIXELS, 0], 0.0, PIXEL_STEP
        )


class SNGANProgram(StepProgram):
    """A training of SN-GAN; a step is one update of the discriminator."""

    def __init__(self, repl: replicator.Replicator, training: Any, info: Any) -> None:
        super().__init__(repl, training, info)
        self._config = training.config
        if self.is_matched:
            training.noise = MatchedNoise(self._config, repl.num_replicas_in_sync)
        self._num_steps_shown = -1
        self._scorer: Scorer | None = None

    def matched_draws(self) -> dict[str, np.ndarray]:
        """Returns latents, classes and noise; see ``StepProgram``."""
        config, count, noise = (
            self._config,
            self.per_replica_batch_size,
            self.training.noise,
        )
        size = config.image_size
        found = {"pixels": noise.pixels_of_all(count, size, size, NUM_CHANNELS)}
        for name, whose, factor in (
            ("generator", GENERATOR, config.generator_batch_factor),
            ("discriminator", DISCRIMINATOR, 1),
        ):
            latents, labels = noise.inputs_of_all(count * factor, whose)
            found |= {f"{name}_latents": latents, f"{name}_labels": labels}
        return {name: value.numpy() for name, value in found.items()}

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Scores generated images against the training images.

        Runs on one device, with the averaged weights if there are any, and with the
        moving statistics of batch norm. Synthetic data has no quality.
        """
        if self.source is None:
            return ()
        if self._scorer is None:
            self._scorer = Scorer(self._config, self.training.images)
        self._update_shown()
        return self._scorer.score(self.training.images_of)

    def samples(self) -> bytes | None:
        """Returns a grid of generated images as PNG: a column per class."""
        num_columns = min(self._config.num_classes, scoring.MOST_COLUMNS)
        latents, labels = fixed_inputs(self._config, num_columns * scoring.NUM_ROWS)
        self._update_shown()
        return scoring.encode(
            self.training.images_of(latents, labels % num_columns), num_columns
        )

    def _update_shown(self) -> None:
        """Copies the weights for pictures and scores, once after the last step."""
        if self._num_steps_shown != self._num_steps:
            self._num_steps_shown = self._num_steps
            self.training.update_shown()
