"""SN-GAN with a projection discriminator (Miyato et al. 2018), from data to update.

    python -m workloads.sngan.train --replicas 2 --steps 50

The steps are code for a single device. ``study.py`` attaches them to the harness.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import command, training
from workloads.data.images import UNCHANGED
from workloads.data.names import DIGITS
from workloads.metrics.digits import prepare_digits

from . import model as model_lib
from . import scoring, study

if TYPE_CHECKING:
    import numpy as np

    import replicator
    from workloads.spec import Metric, QualityMetric

_DISCRIMINATOR_SEEDS = 1_000


class Training(training.ImageTraining):
    """Data, networks, optimizers and steps of one replicator."""

    augmentation = UNCHANGED

    def __init__(
        self, repl: replicator.Replicator, config: study.SNGANConfig, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        self.noise = model_lib.Noise(config)
        generator_steps = config.num_steps // config.num_discriminator_steps
        with repl.context():
            self.generator = model_lib.Generator(config, seed=self.seed)
            self.discriminator = model_lib.Discriminator(
                config, seed=self.seed + _DISCRIMINATOR_SEEDS
            )
            self.averages = [
                training.copy_of(variable, f"average_{index}")
                for index, variable in enumerate(self._averaged())
            ]
            self.generator_optimizer = self._adam(
                repl, self.generator, config.generator_learning_rate, generator_steps
            )
            rate, num_steps = config.discriminator_learning_rate, config.num_steps
            self.discriminator_optimizer = self._adam(
                repl, self.discriminator, rate, num_steps
            )
        self.trackables = {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "generator_optimizer": self.generator_optimizer,
            "discriminator_optimizer": self.discriminator_optimizer,
            **{f"average_{i}": v for i, v in enumerate(self.averages)},
        }
        self.differentiate_generator = training.compiled(
            self.generator_gradients, config.jit
        )
        self.differentiate_discriminator = training.compiled(
            self.discriminator_gradients, config.jit
        )
        num_alone = config.num_discriminator_steps - 1
        self.cycle = (self.both_step, *[self.discriminator_step] * num_alone)
        self._show = tf.function(self._images_of, autograph=False)

    @staticmethod
    def prepare(data: str) -> None:
        if data == DIGITS:
            prepare_digits()

    def _adam(
        self, repl: replicator.Replicator, network: Any, rate: float, num_steps: int
    ) -> replicator.ReplicatedOptimizer:
        config = self.config
        decay = model_lib.LinearDecay(
            learning_rate=rate, num_steps=num_steps, decay_start=config.decay_start
        )
        adam = keras.optimizers.Adam(decay, config.beta_1, config.beta_2)
        optimizer = repl.wrap_optimizer(adam)
        optimizer.build(network.trainable_variables)
        return optimizer

    def _averaged(self) -> list[Any]:
        return self.generator.trainable_variables if self.config.ema_decay else []

    def both_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the generator, then the discriminator."""
        count = batch["label"].shape[0] * self.config.generator_batch_factor
        loss, gradients = self.differentiate_generator(
            *self._draw(count, model_lib.GENERATOR)
        )
        self.generator_optimizer.apply(gradients, self.generator.trainable_variables)
        for average, variable in zip(self.averages, self._averaged(), strict=True):
            share = 1.0 - self.config.ema_decay
            average.assign(average + share * (variable - average))
        return {**self.discriminator_step(batch), "generator_loss": loss}

    def discriminator_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the discriminator; the loss is 2 if nothing is distinguished."""
        batch = self.images.normalised(batch)
        count = batch["label"].shape[0]
        real = batch["image"] + self.noise.pixels(*batch["image"].shape)
        loss, gradients = self.differentiate_discriminator(
            real, batch["label"], *self._draw(count, model_lib.DISCRIMINATOR)
        )
        weights = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply(gradients, weights)
        return {"loss": loss, "example_id": batch["example_id"]}

    def generator_gradients(
        self, latents: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            images = self.generator(latents, labels, training=True)
            logits = self.discriminator(images, labels, training=True)
            loss = model_lib.generator_loss(logits)
        return loss, tape.gradient(loss, self.generator.trainable_variables)

    def discriminator_gradients(
        self,
        real: tf.Tensor,
        real_labels: tf.Tensor,
        latents: tf.Tensor,
        fake_labels: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        fake = self.generator(latents, fake_labels, training=True)
        images = tf.concat([real, tf.stop_gradient(fake)], axis=0)
        labels = tf.concat([tf.cast(real_labels, tf.int64), fake_labels], axis=0)
        count = real_labels.shape[0]
        with tf.GradientTape() as tape:
            # One pass for both: no layer of the discriminator mixes examples.
            logits = self.discriminator(images, labels, training=True)
            loss = model_lib.discriminator_loss(logits[:count], logits[count:])
        return loss, tape.gradient(loss, self.discriminator.trainable_variables)

    def _draw(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        latents, labels = self.noise.inputs(count, whose)
        # GPUs leave what is done with int32 to the host, for which steps would wait.
        return latents, tf.cast(labels, tf.int64)

    def flops(self) -> int:
        return model_lib.training_flops(self.generator, self.discriminator, self.config)

    def evaluate(self, metrics: Sequence[Metric]) -> tuple[QualityMetric, ...]:
        del metrics  # the scorer knows them
        if self.source is None:
            return ()
        return self._scorer.score(self.generate())

    @functools.cached_property
    def _scorer(self) -> scoring.Scorer:
        return scoring.Scorer(self.config, self.images)

    def samples(self) -> bytes:
        return scoring.picture(self.config, self.generate())

    def generate(self) -> scoring.Generate:
        """Returns what makes images now, by the averaged weights if there are any."""
        trained = self.averages or self.generator.trainable_variables
        weights = [
            [tf.constant(variable.numpy()) for variable in variables]
            for variables in (trained, self.generator.non_trainable_variables)
        ]
        return lambda latents, labels: self._show(weights, latents, labels).numpy()

    def _images_of(
        self, weights: Any, latents: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        """Returns images by given weights in place of the generator's."""
        images, _ = self.generator.stateless_call(
            *weights, latents, labels, training=False
        )
        return images

    def match(self, num_replicas: int) -> None:
        self.noise = model_lib.Noise(self.config, num_replicas)

    def matched_draws(self) -> dict[str, np.ndarray]:
        return self.noise.all_draws(self.global_batch_size)


if __name__ == "__main__":
    command.main(__doc__, study.WORKLOAD, Training)
