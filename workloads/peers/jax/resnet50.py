"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in JAX.

python -m workloads.peers.jax.resnet50
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads.peers import inputs
from workloads.peers.jax.process import Process, Weights, normalized

_NUM_BLOCKS = (3, 4, 6, 3)
_EPSILON = 1e-5
"""Of batch normalization."""


def conv(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """As a product of matrices: three times as fast on CPUs as XLA's convolutions."""
    size = kernel.shape[0]
    around = ((size - 1) // 2, (size - 1) // 2)
    padded = jnp.pad(images, [(0, 0), around, around, (0, 0)])
    height, width = (length - size + 1 for length in padded.shape[1:3])
    columns = [
        padded[:, row : row + height : stride, column : column + width : stride]
        for row in range(size)
        for column in range(size)
    ]
    return jnp.concatenate(columns, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def pool(images: jax.Array) -> jax.Array:
    """The largest of 3 x 3 pixels, at every second one."""
    around = [(0, 0), (1, 1), (1, 1), (0, 0)]
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return lax.reduce_window(images, -jnp.inf, lax.max, window, strides, around)


def logits_of(
    weights: Weights, moving: Weights, images: jax.Array, version: str
) -> tuple[jax.Array, Weights]:
    """Returns the logits of ResNet-50, and the moving statistics of the next step."""
    after: Weights = {}

    def conv_norm(value: jax.Array, path: str, stride: int = 1) -> jax.Array:
        value = conv(value, weights[f"{path}.kernel"], stride)
        path = f"{path}.norm"
        gamma, beta = weights[f"{path}.gamma"], weights[f"{path}.beta"]
        value, moved = normalized(value, gamma, beta, moving, path, epsilon=_EPSILON)
        after.update(moved)
        return value

    features = pool(jax.nn.relu(conv_norm(images, "model.stem", 2)))
    first_of_group = [sum(_NUM_BLOCKS[:group]) for group in range(1, 4)]
    for index in range(sum(_NUM_BLOCKS)):
        path = f"model.blocks.{index}"
        stride = 2 if index in first_of_group else 1
        strides = (stride, 1) if version == "v1" else (1, stride)
        shortcut = features
        if f"{path}.projection.kernel" in weights:
            shortcut = conv_norm(features, f"{path}.projection", stride)
        for number in (0, 1):
            inner = conv_norm(features, f"{path}.convs.{number}", strides[number])
            features = jax.nn.relu(inner)
        features = jax.nn.relu(conv_norm(features, f"{path}.convs.2") + shortcut)
    logits = features.mean(axis=(1, 2)) @ weights["model.classifier.kernel"]
    return logits + weights["model.classifier.bias"], after


def make_step(process: Process) -> Any:
    """Returns the step of a replica: gradients, their mean, heavy-ball momentum."""
    config = process.export.config

    def loss_of(weights: Weights, moving: Weights, images: Any, labels: Any) -> Any:
        logits, after = logits_of(weights, moving, images, config["version"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean(), after

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
        rate = jnp.float32(process.export.goyal_rate(step.index))
        trained, moving, losses = step_of(trained, moving, next(batches), rate)
        jax.block_until_ready((trained, moving))
        step.done(loss=float(np.mean(losses)), examples=examples)


if __name__ == "__main__":
    main()
