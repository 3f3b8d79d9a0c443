"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in JAX.

python -m workloads.peers.jax.resnet50
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.peers import inputs, networks
from workloads.peers.jax import Pass, Process, Weights


def make_step(process: Process) -> Any:
    """Returns the step of a replica: gradients, their mean, heavy-ball momentum."""
    config = process.export.config

    def loss_of(weights: Weights, moving: Weights, images: Any, labels: Any) -> Any:
        model = Pass(weights, moving, networks.RESNET50_EPSILON)
        logits = model.resnet50(images, config["version"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean(), model.after

    def step(trained: Any, moving: Weights, batch: Any, rate: jax.Array) -> Any:
        weights, velocity = trained
        (loss, after), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            weights, moving, *batch
        )
        gradients = process.mean(gradients)
        new_weights, new_velocity = {}, {}
        for name, gradient in gradients.items():
            value = gradient
            if config["weight_decay"] and weights[name].ndim > 1:
                value = gradient + config["weight_decay"] * weights[name]
            new_velocity[name] = config["momentum"] * velocity[name] - rate * value
            new_weights[name] = weights[name] + new_velocity[name]
        return (new_weights, new_velocity), after, loss[None]

    return step


def main() -> None:
    process = Process()
    settings = process.export.settings
    weights = {
        name: value
        for name, value in process.export.part("weights").items()
        if not inputs.is_moving(name)
    }
    velocity = {name: 0 * value for name, value in weights.items()}
    trained = process.placed((weights, velocity), is_own=False)
    moving, batches = process.moving(), process.batches()
    step_of = process.compiled(make_step(process))
    examples = settings["num_replicas"] * settings["per_replica_batch_size"]
    for step in process.run.steps():
        rate = jnp.float32(inputs.goyal_rate(process.export, step.index))
        trained, moving, losses = step_of(trained, moving, next(batches), rate)
        jax.block_until_ready((trained, moving))
        step.done(loss=float(np.mean(losses)), examples=examples)


if __name__ == "__main__":
    main()
