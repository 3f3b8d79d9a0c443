"""Arithmetic of D4PG's learner: multiply-adds of convolutions and dense layers.

Norms, activations, losses and updates are left out, as for ResNet-50
(``workloads/resnet50/model.py``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from workloads.d4pg.acting import actor

if TYPE_CHECKING:
    from workloads.d4pg.acting.actor import PolicySpec
    from workloads.d4pg.config import D4PGConfig


def training_flops(config: D4PGConfig, spec: PolicySpec) -> int:
    """Returns the floating-point operations of one transition in a learner step.

    Two per multiply-add. The target networks look at the next observation once. The
    critic's loss trains torso and critic; the policy's goes through a critic whose
    weights need no gradient, back to the action. Inputs need no gradient.
    """
    torso, frames = _torso(spec)
    policy = _policy(spec)
    critic = _critic(config, spec)
    # Layers of the critic that the gradient of an action does not reach.
    before = critic.features
    if not critic.is_joined_first:
        before += critic.first + critic.second
    target = torso + policy.total + critic.total
    learning = 3 * (torso + critic.total) - frames
    if not critic.is_joined_first:
        learning -= critic.action
    if not spec.uses_pixels:
        learning -= critic.first
    improving = policy.total + critic.total + (critic.total - before)
    improving += 2 * policy.total - (policy.features or policy.first)
    improving += 2 * config.num_atoms  # the mean return, and its gradient
    return 2 * (target + learning + improving)


class _Dense:
    """Multiply-adds of the dense layers of a network.

    Attributes:
      features: Of the first layer after the convolutions; 0 with states.
      first: Of the first hidden layer.
      second: Of the layer after it.
      action: Of the layer that only actions enter; 0 if there is none.
      total: Of all layers.
      is_joined_first: Whether actions enter at the first hidden layer.
    """

    def __init__(
        self, spec: PolicySpec, sizes: tuple[int, ...], *, num_inputs: int
    ) -> None:
        self.features = self.action = 0
        width = spec.observation_shape[0]
        if spec.uses_pixels:
            width = spec.num_features
            self.features = actor.conv_size(spec) * width
        self.is_joined_first = num_inputs > 0
        layers = [width + num_inputs, *sizes]
        products = [a * b for a, b in itertools.pairwise(layers)]
        self.first, self.second = products[:2]
        self.total = self.features + sum(products)


def _policy(spec: PolicySpec) -> _Dense:
    return _Dense(spec, (*spec.hidden_sizes, spec.action_size), num_inputs=0)


def _critic(config: D4PGConfig, spec: PolicySpec) -> _Dense:
    sizes = (*config.critic_layers, config.num_atoms)
    if config.network == "layer_norm_mlp":
        return _Dense(spec, sizes, num_inputs=spec.action_size)
    found = _Dense(spec, sizes, num_inputs=0)
    found.action = spec.action_size * config.critic_layers[1]
    found.total += found.action
    return found


def _torso(spec: PolicySpec) -> tuple[int, int]:
    """Returns the multiply-adds of all convolutions, and of the first."""
    if not spec.uses_pixels:
        return 0, 0
    height, width, channels = spec.observation_shape
    kernel, found = actor.KERNEL_SIZE, []
    for stride in actor.STRIDES:
        height = (height - kernel) // stride + 1
        width = (width - kernel) // stride + 1
        found.append(height * width * kernel**2 * channels * spec.num_conv_filters)
        channels = spec.num_conv_filters
    return sum(found), found[0]
