"""The training step of SN-GAN, as ``workloads/sngan`` defines it, in JAX.

python -m workloads.peers.jax.sngan
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.peers import inputs, networks
from workloads.peers.jax import Pass, Process, Weights

_ADAM_EPSILON = 1e-7
"""Of Keras."""


def passed(weights: Weights, kept: Weights) -> Pass:
    return Pass(weights, kept, networks.SNGAN_EPSILON)


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
        weights[name] = weight - rate * first / (jnp.sqrt(second) + _ADAM_EPSILON)
        firsts[name], seconds[name] = first, second
    return weights, firsts, seconds


def make_step(process: Process, *, is_both: bool) -> Any:
    """Returns the step of a replica: of the discriminator, or of both networks."""
    config = process.export.config

    def generator_loss(
        weights: Weights, moving: Weights, judge: Any, draws: Any
    ) -> Any:
        made, judged = passed(weights, moving), passed(*judge)
        labels = draws["generator_labels"]
        images = made.generator(draws["generator_latents"], labels)
        return -judged.discriminator(images, labels).mean(), (made.after, judged.after)

    def discriminator_loss(weights: Weights, norms: Weights, *both: jax.Array) -> Any:
        judged = passed(weights, norms)
        real, fake = jnp.split(judged.discriminator(*both), 2)
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
        made, classes = (passed(generator[0], moving), draws["discriminator_labels"])
        fake = made.generator(draws["discriminator_latents"], classes)
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


def rate_of(config: dict[str, Any], network: str, step: int, every: int) -> Any:
    """Returns the learning rate of an update, with the corrections of Adam's means."""
    number = step // every + 1
    rate = config[f"{network}_learning_rate"]
    rate *= inputs.linear_decay(config, step, config["num_steps"])
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
            "generator": rate_of(config, "generator", step.index, every),
            "discriminator": rate_of(config, "discriminator", step.index, 1),
        }
        state, moving, losses = steps[is_both](state, moving, batch, rates)
        jax.block_until_ready((state, moving))
        step.done(loss=float(np.mean(losses)), examples=labels.size)


if __name__ == "__main__":
    main()
