"""SN-GAN with a projection discriminator (Miyato et al. 2018), from data to update.

    python -m workloads.sngan.train --replicas 2 --steps 50

The steps are code for a single device. ``study.py`` attaches them to the harness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import replicator
from workloads.common import command, training
from workloads.data.images import UNCHANGED

from . import networks, scoring, study

if TYPE_CHECKING:
    import numpy as np

# Pixels have 256 integer levels; noise as wide as one level fills the gaps.
PIXEL_STEP = 2.0 / 255.0
_DISCRIMINATOR_SEEDS = 1_000
GENERATOR, DISCRIMINATOR = 1, 2
"""Whose update random inputs are for."""


class Noise:
    """The random numbers of a step, which each replica draws for itself."""

    def __init__(self, config: study.SNGANConfig) -> None:
        self._config = config

    def inputs(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns latents and uniformly drawn classes, of one of the networks."""
        del whose
        latents = tf.random.normal([count, self._config.latent_size])
        return latents, tf.random.uniform(
            [count], 0, self._config.num_classes, tf.int32
        )

    def pixels(self, images: tf.Tensor) -> tf.Tensor:
        """Returns noise as wide as one level of a pixel."""
        return tf.random.uniform(images.shape, 0.0, PIXEL_STEP)


class Training(training.ImageTraining):
    """Data, networks, optimizers and steps of one replicator.

    Attributes:
      generator: Maps latents and classes to images.
      discriminator: Distinguishes them from real ones.
      averages: Moving averages of the generator's weights; none with ``ema_decay`` 0.
      noise: What steps draw.
      trackables: What a checkpoint holds, by name.
      cycle: The steps that take turns, as the published code has them.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: study.SNGANConfig,
        *,
        seed: int,
        **batches: Any,
    ) -> None:
        super().__init__(repl, config, seed=seed, augmentation=UNCHANGED, **batches)
        self.noise = Noise(config)
        generator_steps = config.num_steps // config.num_discriminator_steps
        with repl.context():
            self.generator = networks.Generator(config, seed=seed)
            self.discriminator = networks.Discriminator(
                config, seed=seed + _DISCRIMINATOR_SEEDS
            )
            self.averages = [
                keras.Variable(
                    variable.numpy(),
                    trainable=False,
                    aggregation="only_first_replica",
                    name=f"average_{index}",
                )
                for index, variable in enumerate(self._averaged())
            ]
            self.generator_optimizer = repl.wrap_optimizer(
                self._adam(config.generator_learning_rate, generator_steps)
            )
            self.generator_optimizer.build(self.generator.trainable_variables)
            self.discriminator_optimizer = repl.wrap_optimizer(
                self._adam(config.discriminator_learning_rate, config.num_steps)
            )
            self.discriminator_optimizer.build(self.discriminator.trainable_variables)
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
        # Not replicated: it is only used to show the averaged weights.
        self.shown = networks.Generator(config, seed=seed)
        self._show = tf.function(
            lambda latents, labels: self.shown(latents, labels, training=False),
            autograph=False,
        )

    def _adam(self, learning_rate: float, num_steps: int) -> keras.optimizers.Adam:
        config = self.config
        decay = networks.LinearDecay(
            learning_rate=learning_rate,
            num_steps=num_steps,
            decay_start=config.decay_start,
        )
        return keras.optimizers.Adam(decay, config.beta_1, config.beta_2)

    def _averaged(self) -> list[Any]:
        return self.generator.trainable_variables if self.config.ema_decay else []

    def both_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the generator, then the discriminator."""
        count = batch["label"].shape[0] * self.config.generator_batch_factor
        loss, gradients = self.differentiate_generator(*self._draw(count, GENERATOR))
        self.generator_optimizer.apply_gradients(
            zip(gradients, self.generator.trainable_variables, strict=True)
        )
        for average, variable in zip(self.averages, self._averaged(), strict=True):
            share = 1.0 - self.config.ema_decay
            average.assign(average + share * (variable - average))
        return {**self.discriminator_step(batch), "generator_loss": loss}

    def discriminator_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates the discriminator of one replica.

        Its hinge loss is 2 where real and generated images cannot be distinguished.
        """
        batch = self.images.normalised(batch)
        count = batch["label"].shape[0]
        real = batch["image"] + self.noise.pixels(batch["image"])
        loss, gradients = self.differentiate_discriminator(
            real, batch["label"], *self._draw(count, DISCRIMINATOR)
        )
        self.discriminator_optimizer.apply_gradients(
            zip(gradients, self.discriminator.trainable_variables, strict=True)
        )
        return {"loss": loss, "example_id": batch["example_id"]}

    def generator_gradients(
        self, latents: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the generator's loss and its gradients."""
        with tf.GradientTape() as tape:
            images = self.generator(latents, labels, training=True)
            logits = self.discriminator(images, labels, training=True)
            loss = networks.generator_loss(logits)
        return loss, tape.gradient(loss, self.generator.trainable_variables)

    def discriminator_gradients(
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
            loss = networks.discriminator_loss(logits[:count], logits[count:])
        return loss, tape.gradient(loss, self.discriminator.trainable_variables)

    def _draw(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        latents, labels = self.noise.inputs(count, whose)
        # GPUs leave what is done with int32 to the host, for which steps would wait.
        return latents, tf.cast(labels, tf.int64)

    def flops(self) -> int:
        """Returns the floating-point operations of one image in a training step."""
        return networks.training_flops(self.config)

    def update_shown(self) -> None:
        """Copies the averaged weights, or the weights, for pictures and scores."""
        for shown, variable in zip(
            self.shown.variables, self.generator.variables, strict=True
        ):
            shown.assign(variable.numpy())
        for shown, average in zip(
            self.shown.trainable_variables, self.averages, strict=False
        ):
            shown.assign(average.numpy())

    def images_of(self, latents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Returns generated images; on one device, with moving statistics."""
        images: np.ndarray = self._show(latents, labels).numpy()
        return images


def main() -> None:
    """Trains, and scores generated images."""
    args = command.parse(__doc__, study.WORKLOAD)
    repl = replicator.create(args.backend, num_replicas=args.replicas)
    made = Training(repl, args.config, **args.batches)
    command.train(repl, made, args)
    if made.source is not None:
        made.update_shown()
        for score in scoring.Scorer(args.config, made.images).score(made.images_of):
            print(f"{score.name}: {score.value:.3f} (n = {score.num_examples})")


if __name__ == "__main__":
    main()
