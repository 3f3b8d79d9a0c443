"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in JAX.

python -m workloads.peers.jax.resnet50 [NAME=VALUE ...]
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from workloads.peers import inputs
from workloads.peers.jax.layers import Layers, Weights
from workloads.peers.jax.process import Process

_NUM_BLOCKS = (3, 4, 6, 3)
_EPSILON = 1e-5
"""Of batch normalization."""


class ResNet50:
    """The 50-layer residual network of He et al. 2015, as functions of its weights."""

    def __init__(self, version: str, layers: Layers) -> None:
        self._version, self._layers = version, layers

    def logits(
        self, weights: Weights, moving: Weights, images: jax.Array
    ) -> tuple[jax.Array, Weights]:
        """Returns logits, and the moving statistics of the next step.

        Args:
          weights: What is trained, by our paths.
          moving: Moving means and variances, [1, channels].
          images: [examples, ...] in the layout of the network.
        """
        after: Weights = {}

        def conv_norm(value: jax.Array, path: str, stride: int) -> jax.Array:
            value = self._layers.conv(value, weights[f"{path}.kernel"], stride)
            path = f"{path}.norm"
            gamma, beta = weights[f"{path}.gamma"], weights[f"{path}.beta"]
            value, moved = self._layers.norm(value, gamma, beta, moving, path)
            after.update(moved)
            return value

        features = jax.nn.relu(conv_norm(images, "model.stem", 2))
        features = self._pool(features)
        first, second = (0, 1) if self._version == "v1" else (1, 0)
        index = 0
        for group, count in enumerate(_NUM_BLOCKS):
            for number in range(count):
                stride = 2 if group and not number else 1
                path = f"model.blocks.{index}"
                shortcut = features
                if f"{path}.projection.kernel" in weights:
                    shortcut = conv_norm(features, f"{path}.projection", stride)
                inner = conv_norm(
                    features, f"{path}.convs.0", stride if first == 0 else 1
                )
                inner = conv_norm(
                    jax.nn.relu(inner), f"{path}.convs.1", stride if second == 0 else 1
                )
                inner = conv_norm(jax.nn.relu(inner), f"{path}.convs.2", 1)
                features = jax.nn.relu(inner + shortcut)
                index += 1
        pooled = features.mean(axis=self._layers.places)
        logits = pooled @ weights["model.classifier.kernel"]
        return logits + weights["model.classifier.bias"], after

    def _pool(self, images: jax.Array) -> jax.Array:
        window = [3 if axis in self._layers.places else 1 for axis in range(4)]
        strides = [2 if axis in self._layers.places else 1 for axis in range(4)]
        return lax.reduce_window(
            images, -jnp.inf, lax.max, window, strides, self._layers.around(1)
        )


def make_step(process: Process, network: ResNet50) -> Any:
    """Returns the step of a replica: gradients, their mean, heavy-ball momentum."""
    config = process.export.settings["config"]

    def loss_of(weights: Weights, moving: Weights, images: Any, labels: Any) -> Any:
        logits, after = network.logits(weights, moving, images)
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
    """Takes as many steps as the harness asks for."""
    process = Process()
    settings = process.export.settings
    network = ResNet50(
        settings["config"]["version"], Layers(process.tuning, epsilon=_EPSILON)
    )
    weights, moving = {}, {}
    for name, value in process.export.part("weights").items():
        if name.rpartition(".")[2].startswith("moving_"):
            moving[name] = process.for_each_replica(value)
        else:
            weights[name] = value
    velocity = {name: 0 * value for name, value in weights.items()}
    trained = process.placed((weights, velocity), is_own=False)
    moving = process.placed(moving, is_own=True)
    step_of = process.compiled(make_step(process, network))
    batches = process.batches()
    examples = settings["num_replicas"] * settings["per_replica_batch_size"]
    for step in process.run.steps():
        rate = jnp.float32(inputs.goyal_rate(process.export, step.index))
        trained, moving, losses = step_of(trained, moving, next(batches), rate)
        jax.block_until_ready((trained, moving))
        step.done(loss=process.own_mean(losses), examples=examples)
    process.end()


if __name__ == "__main__":
    main()
