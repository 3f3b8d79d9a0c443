"""SN-GAN as a workload: two networks, two optimizers, one replicated program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import training
from workloads.common.training import compiled
from workloads.data import pipeline
from workloads.data.names import DIGITS
from workloads.matching import own_rows
from workloads.metrics.extractors.digits import prepare_digits
from workloads.program import ImageProgram, ImageWorkload
from workloads.sngan import networks, scoring
from workloads.sngan.networks import NUM_CHANNELS, Discriminator, Generator, LinearDecay
from workloads.sngan.scoring import Scorer, fixed_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    import replicator
    from workloads.data.sources import Source
    from workloads.sngan.config import SNGANConfig
    from workloads.spec import QualityMetric

# Pixels have 256 integer levels; noise as wide as one level fills the gaps.
PIXEL_STEP = 2.0 / 255.0
_DISCRIMINATOR_SEEDS = 1_000
# Streams of random numbers where N replicas are matched with one.
NOISE_OF_GENERATOR, NOISE_OF_DISCRIMINATOR, NOISE_OF_PIXELS = 1, 2, 3


class SNGANProgram(ImageProgram):
    """SN-GAN on one replicator; a step is one update of the discriminator.

    Every ``num_discriminator_steps``-th step updates the generator first, in the same
    dispatch, as the published code does.

    Attributes:
      generator: Maps latents and classes to images.
      discriminator: Distinguishes them from real ones.
    """

    augmentation = pipeline.UNCHANGED

    def __init__(
        self,
        repl: replicator.Replicator,
        config: SNGANConfig,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(
            repl,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )
        self._config = config
        with repl.context():
            self.generator = Generator(config, seed=seed)
            self.discriminator = Discriminator(config, seed=seed + _DISCRIMINATOR_SEEDS)
            self._averages = [
                keras.Variable(
                    variable.numpy(),
                    trainable=False,
                    aggregation="only_first_replica",
                    name=f"average_{index}",
                )
                for index, variable in enumerate(self._averaged())
            ]
            self._of_generator = repl.wrap_optimizer(
                self._adam(
                    config.generator_learning_rate,
                    config.num_steps // config.num_discriminator_steps,
                )
            )
            self._of_generator.build(self.generator.trainable_variables)
            self._of_discriminator = repl.wrap_optimizer(
                self._adam(config.discriminator_learning_rate, config.num_steps)
            )
            self._of_discriminator.build(self.discriminator.trainable_variables)
        self.num_parameters = sum(
            math.prod(variable.shape)
            for model in (self.generator, self.discriminator)
            for variable in model.trainable_variables
        )
        self._differentiate_generator = compiled(self._generator_gradients, config.jit)
        self._differentiate_discriminator = compiled(
            self._discriminator_gradients, config.jit
        )
        self._steps = {True: self._both_step, False: self._discriminator_step}
        self.flops_per_example = networks.training_flops(config)
        # Not replicated: it is only used to show the averaged weights.
        self._shown = Generator(config, seed=seed)
        self._show = tf.function(
            lambda latents, labels: self._shown(latents, labels, training=False),
            autograph=False,
        )
        self._num_steps_shown = -1
        self._scorer: Scorer | None = None

    def _adam(self, learning_rate: float, num_steps: int) -> keras.optimizers.Adam:
        config = self._config
        return keras.optimizers.Adam(
            LinearDecay(
                learning_rate, num_steps=num_steps, decay_start=config.decay_start
            ),
            beta_1=config.beta_1,
            beta_2=config.beta_2,
        )

    def _averaged(self) -> list[Any]:
        return self.generator.trainable_variables if self._config.ema_decay else []

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the discriminator's last loss, over the global batch.

        The value is the hinge loss: 2 if real and generated images cannot be
        distinguished, 0 if they all can.
        """
        loss = math.nan
        for _ in range(num_steps):
            loss = self.dispatch()()
        return loss

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; see ``StepProgram.dispatch``."""
        is_both = self._num_steps % self._config.num_discriminator_steps == 0
        return self._keep(self._run(self._steps[is_both], 1), 1)

    def _both_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the generator, then the discriminator."""
        count = batch["label"].shape[0] * self._config.generator_batch_factor
        loss, gradients = self._differentiate_generator(
            *self._draw(count, NOISE_OF_GENERATOR)
        )
        self._of_generator.apply_gradients(
            zip(gradients, self.generator.trainable_variables, strict=True)
        )
        for average, variable in zip(self._averages, self._averaged(), strict=True):
            share = 1.0 - self._config.ema_decay
            average.assign(average + share * (variable - average))
        return {**self._discriminator_step(batch), "generator_loss": loss}

    def _discriminator_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the discriminator of one replica."""
        batch = self._on_device(batch)
        count = batch["label"].shape[0]
        real = batch["image"] + self._draw_noise(batch["image"])
        loss, gradients = self._differentiate_discriminator(
            real, batch["label"], *self._draw(count, NOISE_OF_DISCRIMINATOR)
        )
        self._of_discriminator.apply_gradients(
            zip(gradients, self.discriminator.trainable_variables, strict=True)
        )
        return {"loss": loss, "example_id": batch["example_id"]}

    def _generator_gradients(
        self, latents: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the generator's loss and its gradients."""
        with tf.GradientTape() as tape:
            images = self.generator(latents, labels, training=True)
            loss = training.generator_loss(
                self.discriminator(images, labels, training=True)
            )
        return loss, tape.gradient(loss, self.generator.trainable_variables)

    def _discriminator_gradients(
        self,
        real: tf.Tensor,
        real_labels: tf.Tensor,
        latents: tf.Tensor,
        fake_labels: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the discriminator's loss and its gradients."""
        fake = self.generator(latents, fake_labels, training=True)
        images = tf.concat([real, tf.stop_gradient(fake)], axis=0)
        labels = tf.concat([tf.cast(real_labels, tf.int64), fake_labels], axis=0)
        count = real_labels.shape[0]
        with tf.GradientTape() as tape:
            # One pass for both: no layer of the discriminator mixes examples.
            logits = self.discriminator(images, labels, training=True)
            loss = training.discriminator_loss(logits[:count], logits[count:])
        return loss, tape.gradient(loss, self.discriminator.trainable_variables)

    def _draw(self, count: int, stream: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns random latents and uniformly drawn classes."""
        config = self._config
        if self.is_matched:
            latents, labels = map(own_rows, self._draw_for_all(count, stream))
        else:
            latents = tf.random.normal([count, config.latent_size])
            labels = tf.random.uniform([count], 0, config.num_classes, tf.int32)
        # GPUs leave what is done with int32 to the host, for which steps would wait.
        return latents, tf.cast(labels, tf.int64)

    def _draw_noise(self, images: tf.Tensor) -> tf.Tensor:
        """Returns noise as wide as one level of a pixel."""
        if not self.is_matched:
            return tf.random.uniform(images.shape, 0.0, PIXEL_STEP)
        return own_rows(self._draw_noise_for_all(*images.shape))

    def _draw_for_all(self, count: int, stream: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns latents and classes of all replicas, the same in every step."""
        config, seed = self._config, [stream, 0]
        total = count * self._repl.num_replicas_in_sync
        return (
            tf.random.stateless_normal([total, config.latent_size], seed),
            tf.random.stateless_uniform([total], seed, 0, config.num_classes, tf.int32),
        )

    def _draw_noise_for_all(self, count: int, *shape: int) -> tf.Tensor:
        """Returns noise of pixels of all replicas, the same in every step."""
        total = count * self._repl.num_replicas_in_sync
        return tf.random.stateless_uniform(
            [total, *shape], [NOISE_OF_PIXELS, 0], 0.0, PIXEL_STEP
        )

    def matched_draws(self) -> dict[str, np.ndarray]:
        """Returns latents, classes and noise; see ``ReplicatedProgram``."""
        config, count = self._config, self.per_replica_batch_size
        found = {
            "pixels": self._draw_noise_for_all(
                count, config.image_size, config.image_size, NUM_CHANNELS
            )
        }
        for name, stream, factor in (
            ("generator", NOISE_OF_GENERATOR, config.generator_batch_factor),
            ("discriminator", NOISE_OF_DISCRIMINATOR, 1),
        ):
            latents, labels = self._draw_for_all(count * factor, stream)
            found |= {f"{name}_latents": latents, f"{name}_labels": labels}
        return {name: value.numpy() for name, value in found.items()}

    def _trackables(self) -> Mapping[str, Any]:
        found = {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "generator_optimizer": self._of_generator,
            "discriminator_optimizer": self._of_discriminator,
        }
        return found | {f"average_{i}": v for i, v in enumerate(self._averages)}

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Scores generated images against the training images.

        Runs on one device, with the averaged weights if there are any, and with
        the moving statistics of batch norm. Synthetic data has no quality.
        """
        if self.source is None:
            return ()
        if self._scorer is None:
            self._scorer = Scorer(self._config, self.source)
        self._update_shown()
        return self._scorer.score(self._images_of)

    def samples(self) -> bytes | None:
        """Returns a grid of generated images as PNG: a column per class."""
        num_columns = min(self._config.num_classes, scoring.MOST_COLUMNS)
        latents, labels = fixed_inputs(self._config, num_columns * scoring.NUM_ROWS)
        self._update_shown()
        return scoring.encode(
            self._images_of(latents, labels % num_columns), num_columns
        )

    def _update_shown(self) -> None:
        """Copies the weights for pictures and scores, once after the last step."""
        if self._num_steps_shown == self._num_steps:
            return
        self._num_steps_shown = self._num_steps
        for shown, variable in zip(
            self._shown.variables, self.generator.variables, strict=True
        ):
            shown.assign(variable.numpy())
        for shown, average in zip(
            self._shown.trainable_variables, self._averages, strict=False
        ):
            shown.assign(average.numpy())

    def _images_of(self, latents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        images: np.ndarray = self._show(latents, labels).numpy()
        return images


class SNGANWorkload(ImageWorkload):
    """The catalogue's ``sngan``."""

    def prepare(self, *, data: str) -> None:
        """Writes the embedded digits and trains their classifier, once per machine."""
        super().prepare(data=data)
        if data == DIGITS:
            prepare_digits()


WORKLOAD = SNGANWorkload("sngan", SNGANProgram)
