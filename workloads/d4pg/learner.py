"""The learner of D4PG: networks, their target copies, optimizers and gradients.

All is code for one device; ``replicator`` runs it on many. Gradients are averaged over
replicas before they are clipped, so R replicas with b transitions each compute the same
as one with R * b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads.common.training import compiled, copy_of

from . import networks

if TYPE_CHECKING:
    from .actor import PolicySpec
    from .study import D4PGConfig

_CRITIC_SEEDS, _TORSO_SEEDS = 1_000, 2_000


class Learner:
    """Networks, their target copies, optimizers and the step.

    Attributes:
      torso: Convolutions over frames, shared by both networks; None for states.
      num_steps: Learner steps so far.
      trackables: What a checkpoint holds, by name.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: D4PGConfig,
        spec: PolicySpec,
        *,
        seed: int,
    ) -> None:
        self.config = config
        self._repl = repl
        self.num_steps = 0
        self._atoms = networks.make_atoms(
            config.lowest_return, config.highest_return, config.num_atoms
        )
        self.differentiate = compiled(self.loss_and_gradients, config.jit)
        with repl.context():
            self.policy = networks.Policy(spec, seed=seed)
            self.critic = networks.Critic(
                spec,
                config.critic_layers,
                num_atoms=config.num_atoms,
                seed=seed + _CRITIC_SEEDS,
            )
            self.torso = (
                networks.Torso(spec, seed=seed + _TORSO_SEEDS)
                if spec.uses_pixels
                else None
            )
            torso: list[Any] = [] if self.torso is None else [self.torso]
            self._networks = [self.policy, self.critic, *torso]
            # Trained by the critic's loss.
            self._critic_variables = [
                variable
                for network in (*torso, self.critic)
                for variable in network.trainable_variables
            ]
            # Used with the same networks, so these are only weights.
            self._targets = [
                [
                    copy_of(each, f"target_{each.name}")
                    for each in network.trainable_variables
                ]
                for network in self._networks
            ]
            self._of_policy = self._adam(config.policy_learning_rate)
            self._of_policy.build(self.policy.trainable_variables)
            self._of_critic = self._adam(config.critic_learning_rate)
            self._of_critic.build(self._critic_variables)
        self.trackables: dict[str, Any] = {
            **{network.name: network for network in self._networks},
            "policy_optimizer": self._of_policy,
            "critic_optimizer": self._of_critic,
            **{
                f"{network.name}_target_{index}": target
                for network, targets in zip(self._networks, self._targets, strict=True)
                for index, target in enumerate(targets)
            },
        }

    def _adam(self, learning_rate: float) -> replicator.ReplicatedOptimizer:
        return self._repl.wrap_optimizer(
            keras.optimizers.Adam(learning_rate, epsilon=1e-8),
            global_clipnorm=self.config.global_clip_norm or None,
        )

    def learn(self, inputs: Any) -> Any:
        """Runs one learner step; updates the targets every ``target_update_period``.

        The first step updates them too, as in Acme: they start equal to the networks.
        """
        if self.num_steps % self.config.target_update_period == 0:
            self._repl.run(self.copy_targets)
        outputs = self._repl.run(self.step_fn, inputs)
        self.num_steps += 1
        return outputs

    def copy_targets(self) -> tf.Tensor:
        """Copies the networks to the target networks."""
        for network, targets in zip(self._networks, self._targets, strict=True):
            for target, variable in zip(
                targets, network.trainable_variables, strict=True
            ):
                target.assign(variable)
        return tf.constant(0)

    def step_fn(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One learner step of one replica."""
        used = ("observation", "action", "next_observation", "reward", "discount")
        outputs, critic_gradients, policy_gradients = self.differentiate(
            {name: batch[name] for name in used}, self._weights(batch)
        )
        # Both use the same weights, so neither is applied before both are computed.
        self._of_critic.apply_gradients(
            zip(critic_gradients, self._critic_variables, strict=True)
        )
        self._of_policy.apply_gradients(
            zip(policy_gradients, self.policy.trainable_variables, strict=True)
        )
        return {**outputs, "index": batch["index"]}

    def _weights(self, batch: dict[str, tf.Tensor]) -> tf.Tensor | float:
        """Returns the importance of each transition, at most 1 in the global batch."""
        if self.config.replay == "uniform":
            return 1.0
        # Schaul et al. 2016, section 3.4.
        weights = tf.pow(batch["probability"], -self.config.importance_exponent)
        return weights / replicator.all_max(tf.reduce_max(weights))

    def loss_and_gradients(
        self, batch: dict[str, tf.Tensor], weights: tf.Tensor | float
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Returns outputs of the step, gradients of critic and torso, of the policy."""
        atoms = tf.constant(self._atoms)
        target, clipped = self._target_distribution(batch, atoms)
        with tf.GradientTape() as tape:
            features = batch["observation"]
            if self.torso is not None:
                features = self.torso(features)
            logits = self.critic(features, batch["action"])
            loss = tf.reduce_mean(weights * networks.critic_loss(logits, target))
        critic_gradients = tape.gradient(loss, self._critic_variables)
        policy_gradients, value = self._policy_gradients(
            tf.stop_gradient(features), atoms
        )
        outputs = {
            "loss": loss,
            "value": value,
            "clipped": tf.reduce_mean(clipped),
            "divergence": networks.divergence(logits, target),
        }
        return outputs, critic_gradients, policy_gradients

    def _target_distribution(
        self, batch: dict[str, tf.Tensor], atoms: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns R + gamma D z of the target networks' next action, and the clipping.

        The replay's D is gamma^(n - 1) times the discounts in between.
        """
        policy, critic, *torso = self._targets
        features = batch["next_observation"]
        if self.torso is not None:
            features = _with_weights(self.torso, torso[0], features)
        action = _with_weights(self.policy, policy, features)
        logits = _with_weights(self.critic, critic, features, action)
        discount = batch["discount"] * self.config.discount
        return networks.backup(batch["reward"], discount, tf.nn.softmax(logits), atoms)

    def _policy_gradients(
        self, features: tf.Tensor, atoms: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the deterministic policy gradient and the mean value."""
        clip_norm = self.config.value_gradient_clip_norm
        with tf.GradientTape() as tape:
            action = self.policy(features)
            with tf.GradientTape(watch_accessed_variables=False) as of_value:
                of_value.watch(action)
                values = networks.expectation(self.critic(features, action), atoms)
            with tape.stop_recording():
                gradient = of_value.gradient(values, action)
            losses = networks.policy_loss(action, gradient, clip_norm=clip_norm)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.policy.trainable_variables)
        return gradients, tf.reduce_mean(values)

    def policy_weights(self) -> np.ndarray:
        """Returns the policy's weights in the layout of ``PolicySpec``, float32."""
        torso = [] if self.torso is None else self.torso.trainable_variables
        variables = [*torso, *self.policy.trainable_variables]
        return np.concatenate([np.ravel(variable.numpy()) for variable in variables])


def _with_weights(network: Any, weights: list[Any], *inputs: Any) -> Any:
    """Returns the output of a network with the given weights instead of its own."""
    outputs, _ = network.stateless_call(weights, [], *inputs)
    return outputs
