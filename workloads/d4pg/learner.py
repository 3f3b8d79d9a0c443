"""The learner of D4PG: one critic and one policy update per learner step.

The step is code for one device; ``replicator`` runs it on many. Gradients are averaged
over replicas before they are clipped, so R replicas with b transitions each compute the
same as one with R * b.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads.common.training import compiled
from workloads.d4pg.networks import Critic, Policy, Torso

if TYPE_CHECKING:
    from workloads.d4pg.actor import PolicySpec
    from workloads.d4pg.config import D4PGConfig


# Logits and targets are [examples, num_atoms], actions [examples, action_size], the
# other arguments [examples]; all are float32.


def critic_loss(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy from target to predicted distributions of returns."""
    return tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(target), logits)


def divergence(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the Kullback-Leibler divergence from target to prediction.

    Used for priorities of replay: the cross-entropy minus the entropy of the target,
    so that it is 0 for a perfect prediction.
    """
    entropy = -tf.reduce_sum(tf.math.xlogy(target, target), axis=1)
    return tf.maximum(critic_loss(logits, target) - entropy, 0.0)


def policy_loss(
    action: tf.Tensor, value_gradient: tf.Tensor, *, clip_norm: float
) -> tf.Tensor:
    """Returns a loss whose gradient for the actions is minus that of their value.

    The deterministic policy gradient (Silver et al. 2014) is dQ/da da/dtheta. As in
    Acme, 0.5 |a - stop(a + dQ/da)|^2 has it as its gradient, where the norm of dQ/da
    is first clipped, per example.
    """
    if clip_norm:
        value_gradient = tf.clip_by_norm(value_gradient, clip_norm, axes=1)
    better = tf.stop_gradient(action + value_gradient)
    return 0.5 * tf.reduce_sum(tf.square(better - action), axis=1)


def importance_weights(probability: tf.Tensor, *, exponent: float) -> tf.Tensor:
    """Returns probability ** -exponent: the correction of prioritized sampling.

    Schaul et al. 2016, section 3.4, before the division by the largest, which is taken
    over the global batch.
    """
    return tf.pow(probability, -exponent)


# A distribution assigns a probability to each of N evenly spaced returns, the atoms. A
# Bellman backup moves the atoms, and their probabilities are projected back onto the
# original ones: equation 7.

RIM = 1e-3
"""How far beyond the last atom a return does not count as clipped, in spacings."""


def make_atoms(low: float, high: float, num_atoms: int) -> np.ndarray:
    """Returns evenly spaced returns, [num_atoms] float32."""
    return np.linspace(low, high, num_atoms, dtype=np.float32)


def expectation(logits: tf.Tensor, atoms: tf.Tensor) -> tf.Tensor:
    """Returns the mean of each distribution."""
    return tf.linalg.matvec(tf.nn.softmax(logits), atoms)


def backup(
    reward: tf.Tensor,
    discount: tf.Tensor,
    next_probabilities: tf.Tensor,
    atoms: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distribution of reward + discount * next return, on the atoms.

    Each backed-up atom is clipped to the range of the atoms, and its probability is
    distributed linearly to its two neighbours (equation 7):

        target_i = sum_j [1 - |clip(reward + discount z_j) - z_i| / dz]_0^1 p_j
    """
    num_atoms = atoms.shape[0]
    spacing = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    returns = reward[:, None] + discount[:, None] * atoms[None, :]
    # In units of the spacing, from the lowest atom: 0 to num_atoms - 1.
    places = (returns - atoms[0]) / spacing
    last = tf.cast(num_atoms - 1, tf.float32)
    # Rounding can put an atom at the end slightly outside; that is not clipping.
    is_outside = (places < -RIM) | (places > last + RIM)
    clipped = tf.reduce_sum(
        tf.where(is_outside, next_probabilities, tf.zeros_like(places)), axis=1
    )
    places = tf.clip_by_value(places, 0.0, last)
    below = tf.minimum(tf.floor(places), last - 1.0)
    to_above = places - below
    # A scatter over 2 N entries: the kernel of equation 7 itself has N^2. GPUs leave
    # arithmetic in int32 to the host, for which every step would wait.
    rows = tf.range(tf.shape(places, tf.int64)[0])[:, None] * num_atoms
    index = rows + tf.cast(below, tf.int64)
    target = tf.math.unsorted_segment_sum(
        tf.stack(
            [next_probabilities * (1.0 - to_above), next_probabilities * to_above]
        ),
        tf.stack([index, index + 1]),
        tf.size(places),
    )
    return tf.reshape(target, tf.shape(places)), clipped


_CRITIC_SEEDS, _TORSO_SEEDS = 1_000, 2_000


class Learner:
    """Networks, their target copies, optimizers and the step."""

    torso: Torso | None  # Convolutions over frames, shared by both; none for states.
    num_steps: int = 0  # Learner steps so far.

    def __init__(
        self,
        repl: replicator.Replicator,
        config: D4PGConfig,
        spec: PolicySpec,
        *,
        seed: int,
    ) -> None:
        self._repl = repl
        self._config = config
        self._atoms = make_atoms(
            config.lowest_return, config.highest_return, config.num_atoms
        )
        self._differentiate = compiled(self._loss_and_gradients, config.jit)
        with repl.context():
            self.policy = Policy(spec, seed=seed)
            self.critic = Critic(
                spec,
                config.critic_layers,
                num_atoms=config.num_atoms,
                seed=seed + _CRITIC_SEEDS,
            )
            self.torso = (
                Torso(spec, seed=seed + _TORSO_SEEDS) if spec.uses_pixels else None
            )
            # Used with the same networks, so these are only weights.
            self._targets = [
                [_target(variable) for variable in network.trainable_variables]
                for network in self._networks
            ]
            self._of_policy = self._wrap_adam(config.policy_learning_rate)
            self._of_policy.build(self.policy.trainable_variables)
            self._of_critic = self._wrap_adam(config.critic_learning_rate)
            self._of_critic.build(self._critic_variables)

    @property
    def _networks(self) -> list[Any]:
        torso = [] if self.torso is None else [self.torso]
        return [self.policy, self.critic, *torso]

    @property
    def _critic_variables(self) -> list[Any]:
        """The variables trained by the critic's loss, including the torso."""
        torso = [] if self.torso is None else self.torso.trainable_variables
        return [*torso, *self.critic.trainable_variables]

    def _wrap_adam(self, learning_rate: float) -> replicator.ReplicatedOptimizer:
        return self._repl.wrap_optimizer(
            keras.optimizers.Adam(learning_rate, epsilon=1e-8),
            global_clipnorm=self._config.global_clip_norm or None,
        )

    @property
    def num_parameters(self) -> int:
        """Trained scalars of all networks, without the target copies."""
        return sum(
            math.prod(variable.shape)
            for network in self._networks
            for variable in network.trainable_variables
        )

    @property
    def trackables(self) -> dict[str, Any]:
        """Contents of a checkpoint, by name: networks, targets and optimizers."""
        found: dict[str, Any] = {
            network.name: network for network in self._networks
        } | {"policy_optimizer": self._of_policy, "critic_optimizer": self._of_critic}
        for network, targets in zip(self._networks, self._targets, strict=True):
            for index, target in enumerate(targets):
                found[f"{network.name}_target_{index}"] = target
        return found

    def run(self, inputs: Any) -> Any:
        """Runs one learner step; updates the targets every ``target_update_period``.

        The first step updates them too, as in Acme: they start equal to the networks.
        """
        if self.num_steps % self._config.target_update_period == 0:
            self._repl.run(self._copy)
        outputs = self._repl.run(self._step, inputs)
        self.num_steps += 1
        return outputs

    def _copy(self) -> tf.Tensor:
        """Copies the networks to the target networks."""
        for network, targets in zip(self._networks, self._targets, strict=True):
            for target, variable in zip(
                targets, network.trainable_variables, strict=True
            ):
                target.assign(variable)
        return tf.constant(0)

    def _step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One learner step of one replica."""
        used = ("observation", "action", "next_observation", "reward", "discount")
        outputs, critic_gradients, policy_gradients = self._differentiate(
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

    def _loss_and_gradients(
        self, batch: dict[str, tf.Tensor], weights: tf.Tensor | float
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Returns outputs of the step, gradients of critic and torso, of the policy."""
        atoms = tf.constant(self._atoms)
        target, clipped = self._target_distribution(batch, atoms)
        with tf.GradientTape() as tape:
            features = self._see(batch["observation"])
            logits = self.critic(features, batch["action"])
            loss = tf.reduce_mean(weights * critic_loss(logits, target))
        critic_gradients = tape.gradient(loss, self._critic_variables)
        policy_gradients, value = self._policy_gradients(
            tf.stop_gradient(features), atoms
        )
        outputs = {
            "loss": loss,
            "value": value,
            "clipped": tf.reduce_mean(clipped),
            "divergence": divergence(logits, target),
        }
        return outputs, critic_gradients, policy_gradients

    def _see(self, observation: tf.Tensor) -> tf.Tensor:
        found: tf.Tensor = (
            observation if self.torso is None else self.torso(observation)
        )
        return found

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
        return backup(
            batch["reward"],
            batch["discount"] * self._config.discount,
            tf.nn.softmax(logits),
            atoms,
        )

    def _weights(self, batch: dict[str, tf.Tensor]) -> tf.Tensor | float:
        """Returns the importance of each transition, at most 1 in the global batch."""
        if self._config.replay == "uniform":
            return 1.0
        weights = importance_weights(
            batch["probability"], exponent=self._config.importance_exponent
        )
        return weights / replicator.all_max(tf.reduce_max(weights))

    def _policy_gradients(
        self, features: tf.Tensor, atoms: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the deterministic policy gradient and the mean value."""
        with tf.GradientTape() as tape:
            action = self.policy(features)
            with tf.GradientTape(watch_accessed_variables=False) as of_value:
                of_value.watch(action)
                values = expectation(self.critic(features, action), atoms)
            with tape.stop_recording():
                value_gradient = of_value.gradient(values, action)
            loss = tf.reduce_mean(
                policy_loss(
                    action,
                    value_gradient,
                    clip_norm=self._config.value_gradient_clip_norm,
                )
            )
        gradients = tape.gradient(loss, self.policy.trainable_variables)
        return gradients, tf.reduce_mean(values)

    def policy_weights(self) -> np.ndarray:
        """Returns the policy's weights in the layout of ``PolicySpec``, float32."""
        torso = [] if self.torso is None else self.torso.trainable_variables
        variables = [*torso, *self.policy.ordered_variables]
        return np.concatenate([np.ravel(variable.numpy()) for variable in variables])


def _target(variable: Any) -> keras.Variable:
    # All replicas write the same; stock strategies must be given the one to use.
    return keras.Variable(
        variable.numpy(),
        trainable=False,
        aggregation="only_first_replica",
        name=f"target_{variable.name}",
    )


def _with_weights(network: Any, weights: list[Any], *inputs: Any) -> Any:
    """Returns the output of a network with the given weights instead of its own."""
    outputs, _ = network.stateless_call(weights, [], *inputs)
    return outputs
