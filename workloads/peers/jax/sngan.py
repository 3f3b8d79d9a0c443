"""The training step of SN-GAN, as ``workloads/sngan`` defines it, in JAX.

python -m workloads.peers.jax.sngan
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads.peers import inputs
from workloads.peers.jax.process import Process, Weights, normalized

_OF_NORMS, _EPSILON, _OF_ADAM = 1e-12, 2e-5, 1e-7
"""Of lengths of vectors of spectral norms, of batch norm, and of Keras' Adam."""
_FIRST_SIZE = 4
_NUM_DOWNSAMPLED = 2
"""Blocks of the discriminator that halve the image, of layout ``cifar``."""


class Pass:
    def __init__(self, weights: Weights, kept: Weights) -> None:
        self._weights, self._kept = weights, kept
        self.after = dict(kept)

    def images(self, latents: jax.Array, labels: jax.Array) -> jax.Array:
        """Returns what the generator makes, in [-1, 1]."""
        weights = self._weights
        flat = (
            latents @ weights["generator.dense.kernel"]
            + weights["generator.dense.bias"]
        )
        hidden = flat.reshape(len(latents), _FIRST_SIZE, _FIRST_SIZE, -1)
        for path in inputs.block_paths(self._weights, "generator"):
            inner = self._conditional(hidden, f"{path}.norm_1", labels)
            inner = self._conv(doubled(inner), f"{path}.conv_1")
            inner = self._conditional(inner, f"{path}.norm_2", labels)
            shortcut = doubled(self._conv(hidden, f"{path}.shortcut"))
            hidden = self._conv(inner, f"{path}.conv_2") + shortcut
        path = "generator.last_norm"
        hidden = self._norm(
            hidden, path, weights[f"{path}.gamma"], weights[f"{path}.beta"]
        )
        return jnp.tanh(self._conv(hidden, "generator.last_conv"))

    def logits(self, images: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = images
        blocks = inputs.block_paths(self._weights, "discriminator")
        paths = ["discriminator.first_block", *blocks]
        for index, path in enumerate(paths):
            inner = self._conv(
                jax.nn.relu(hidden) if index else hidden, f"{path}.conv_1"
            )
            inner = self._conv(jax.nn.relu(inner), f"{path}.conv_2")
            if index < _NUM_DOWNSAMPLED:
                inner, hidden = halved(inner), halved(hidden)
            if f"{path}.shortcut.kernel" in self._weights:
                hidden = self._conv(hidden, f"{path}.shortcut")
            hidden = inner + hidden
        features = jax.nn.relu(hidden).sum(axis=(1, 2))
        path = "discriminator.embedding"  # the rows of its matrix are classes
        of_class = self._divided(path, self._weights[f"{path}.kernel"].T).T[labels]
        path = "discriminator.dense"
        logits = features @ self._divided(path, self._weights[f"{path}.kernel"])
        return logits[:, 0] + (features * of_class).sum(axis=1)

    def _conv(self, images: jax.Array, path: str) -> jax.Array:
        kernel = self._weights[f"{path}.kernel"]
        if f"{path}.u" in self._kept:
            kernel = self._divided(path, kernel)
        return conv(images, kernel) + self._weights[f"{path}.bias"]

    def _divided(self, path: str, kernel: jax.Array) -> jax.Array:
        """Returns a kernel over its spectral norm, of which it takes a power step."""
        matrix = kernel.reshape(-1, kernel.shape[-1])
        fixed = lax.stop_gradient(matrix)
        v = _unit(fixed @ self._kept[f"{path}.u"])
        u = _unit(v @ fixed)
        self.after[f"{path}.u"] = u
        return kernel / (v @ matrix @ u)

    def _conditional(
        self, images: jax.Array, path: str, labels: jax.Array
    ) -> jax.Array:
        gamma, beta = (self._weights[f"{path}.{name}"] for name in ("gamma", "beta"))
        of_each = (table[labels][:, None, None] for table in (gamma, beta))
        return self._norm(images, f"{path}.norm", *of_each)

    def _norm(
        self, images: jax.Array, path: str, gamma: jax.Array, beta: jax.Array
    ) -> jax.Array:
        """Returns the positive part of normalized images."""
        images, moved = normalized(
            images, gamma, beta, self._kept, path, epsilon=_EPSILON
        )
        self.after |= moved
        return jax.nn.relu(images)


def conv(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution; with few channels a product of matrices is half as fast."""
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def doubled(images: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(images, 2, axis=1), 2, axis=2)


def halved(images: jax.Array) -> jax.Array:
    """Averages 2 x 2 pixels."""
    examples, height, width, channels = images.shape
    shape = (examples, height // 2, 2, width // 2, 2, channels)
    return images.reshape(shape).mean(axis=(2, 4))


def _unit(vector: jax.Array) -> jax.Array:
    return vector / (jnp.linalg.norm(vector) + _OF_NORMS)


def updated(
    trained: tuple[Weights, Weights, Weights],
    gradients: Weights,
    config: dict[str, Any],
    rate: jax.Array,
) -> tuple[Weights, Weights, Weights]:
    """Returns weights, and means of gradients and of their squares, after Adam."""
    weights, firsts, seconds = ({}, {}, {})  # type: tuple[Weights, Weights, Weights]
    for name, gradient in gradients.items():
        weight, first, second = (part[name] for part in trained)
        first += (1 - config["beta_1"]) * (gradient - first)
        second += (1 - config["beta_2"]) * (jnp.square(gradient) - second)
        weights[name] = weight - rate * first / (jnp.sqrt(second) + _OF_ADAM)
        firsts[name], seconds[name] = first, second
    return weights, firsts, seconds


def make_step(process: Process, *, is_both: bool) -> Any:
    """Returns the step of a replica: of the discriminator, or of both networks."""
    config = process.export.config

    def generator_loss(
        weights: Weights, moving: Weights, judge: Any, draws: Any
    ) -> Any:
        made, judged = Pass(weights, moving), Pass(*judge)
        labels = draws["generator_labels"]
        images = made.images(draws["generator_latents"], labels)
        return -judged.logits(images, labels).mean(), (made.after, judged.after)

    def discriminator_loss(weights: Weights, norms: Weights, *both: jax.Array) -> Any:
        judged = Pass(weights, norms)
        real, fake = jnp.split(judged.logits(*both), 2)
        loss = jax.nn.relu(1 - real).mean() + jax.nn.relu(1 + fake).mean()
        return loss, judged.after

    def step(trained: Any, moving: Weights, batch: Any, rates: Any) -> Any:
        generator, discriminator, norms, averages = trained
        images, labels, draws = batch
        if is_both:
            gradients, (moving, norms) = jax.grad(generator_loss, has_aux=True)(
                generator[0], moving, (discriminator[0], norms), draws
            )
            generator = updated(
                generator, process.mean(gradients), config, rates["generator"]
            )
            averages = {
                name: value + (1 - config["ema_decay"]) * (generator[0][name] - value)
                for name, value in averages.items()
            }
        made, classes = (Pass(generator[0], moving), draws["discriminator_labels"])
        fake = made.images(draws["discriminator_latents"], classes)
        (loss, norms), gradients = jax.value_and_grad(discriminator_loss, has_aux=True)(
            discriminator[0],
            norms,
            jnp.concatenate([images + draws["pixels"], fake]),
            jnp.concatenate([labels, classes]),
        )
        discriminator = updated(
            discriminator, process.mean(gradients), config, rates["discriminator"]
        )
        return (generator, discriminator, norms, averages), made.after, loss[None]

    return step


def rate_of(export: inputs.Export, network: str, step: int, every: int) -> Any:
    """Returns the learning rate of an update, with the corrections of Adam's means."""
    config, number = export.config, step // every + 1
    rate = config[f"{network}_learning_rate"] * export.linear_decay(step)
    rate *= math.sqrt(1 - config["beta_2"] ** number) / (1 - config["beta_1"] ** number)
    return jnp.float32(rate)


def main() -> None:
    process = Process()
    config = process.export.config
    weights: dict[str, Any] = {"generator": {}, "discriminator": {}}
    norms = {}
    for name, value in process.export.part("weights").items():
        if name.endswith(".u"):
            norms[name] = value
        elif not inputs.is_moving(name):
            weights[name.partition(".")[0]][name] = value
    averages = dict(weights["generator"]) if config["ema_decay"] else {}
    trained = [
        (
            value,
            *({name: 0 * values for name, values in value.items()} for _ in range(2)),
        )
        for value in weights.values()
    ]
    state = process.placed((*trained, norms, averages), is_own=False)
    moving, batches, draws = process.moving(), process.batches(), process.draws()
    steps = [
        process.compiled(make_step(process, is_both=each)) for each in (False, True)
    ]
    every = config["num_discriminator_steps"]
    for step in process.run.steps():
        is_both = step.index % every == 0
        images, labels = next(batches)
        batch = images, labels, next(draws)
        rates = {
            "generator": rate_of(process.export, "generator", step.index, every),
            "discriminator": rate_of(process.export, "discriminator", step.index, 1),
        }
        state, moving, losses = steps[is_both](state, moving, batch, rates)
        jax.block_until_ready((state, moving))
        step.done(loss=float(np.mean(losses)), examples=labels.size)


if __name__ == "__main__":
    main()
