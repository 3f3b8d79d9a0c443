"""D4PG's networks (Tassa et al. 2018), losses, gradients and learner step.

All is code for one device; ``replicator`` runs it on many. Gradients are averaged over
replicas before they are clipped, so R replicas with b transitions each compute the same
as one with R * b.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads.common.training import compiled, copy_of, products_of

from . import actor

if TYPE_CHECKING:
    from .control import EnvironmentSpec
    from .study import D4PGConfig

_CRITIC_SEEDS, _TORSO_SEEDS = 1_000, 2_000
_SMALL = 3e-3  # limit of the last layers' first weights (Lillicrap et al. 2015)


def _uniform(kind: str, seed: int) -> keras.initializers.Initializer:
    # Lillicrap et al. 2015: uniform up to 1 / sqrt(inputs). Acme: of the outputs.
    mode = "fan_in" if kind == "mlp" else "fan_out"
    return keras.initializers.VarianceScaling(
        1 / 3, mode=mode, distribution="uniform", seed=seed
    )


def make_networks(
    config: D4PGConfig, spec: EnvironmentSpec, *, seed: int
) -> tuple[keras.Model | None, keras.Model, keras.Model]:
    """Returns torso, policy and critic; of states there is no torso.

    The policy maps states, or outputs of the torso, to actions in [-1, 1]; the critic
    maps these and actions to logits of distributions.
    """
    torso = None
    (size, *_) = shape = spec.seen_shape(config.num_stacked_frames)
    if config.observations == "pixels":
        torso = _torso(config, shape, seed=seed + _TORSO_SEEDS)
        size = torso.output_shape[-1]
    last = {"units": spec.action_size, "activation": "tanh", "name": "action"}
    policy = _network("policy", config, size, config.policy_layers, last, seed=seed)
    last = {"units": config.num_atoms, "name": "logits"}
    actions = keras.Input((spec.action_size,))
    seed += _CRITIC_SEEDS
    sizes = config.critic_layers
    critic = _network("critic", config, size, sizes, last, actions, seed=seed)
    return torso, policy, critic


def _torso(config: D4PGConfig, shape: tuple[int, ...], *, seed: int) -> keras.Model:
    """Two convolutions over stacked uint8 frames, shared by policy and critic."""
    frames = keras.Input(shape, dtype="uint8")
    hidden = keras.ops.cast(frames, "float32") * (1 / 255)
    for index, stride in enumerate(actor.STRIDES):
        hidden = keras.layers.Conv2D(
            config.num_conv_filters,
            actor.KERNEL_SIZE,
            strides=stride,
            activation="elu",
            kernel_initializer=_uniform("mlp", seed + index + 1),
            name=f"conv_{index}",
        )(hidden)
    flat = keras.ops.reshape(hidden, [-1, math.prod(hidden.shape[1:])])
    return keras.Model(frames, flat, name="torso")


def _network(
    name: str,
    config: D4PGConfig,
    num_inputs: int,
    sizes: Sequence[int],
    last: dict[str, Any],
    actions: Any = None,
    *,
    seed: int,
) -> keras.Model:
    """Returns hidden layers and a last one; before them, the layer that sees frames.

    Actions join the inputs of the first hidden layer; in an ``mlp`` the outputs of the
    second one, by a linear layer without a bias, which that layer has.
    """
    seeds, is_mlp = itertools.count(seed + 1), config.network == "mlp"

    def dense(values: Any, name: str, units: int, seed: int, **settings: Any) -> Any:
        init = _uniform(config.network, seed)
        return keras.layers.Dense(
            units, kernel_initializer=init, name=name, **settings
        )(values)

    def normalized(values: Any, name: str) -> Any:
        norm = keras.layers.LayerNormalization(epsilon=actor.EPSILON, name=name)
        return keras.ops.tanh(norm(values))

    hidden = inputs = keras.Input((num_inputs,))
    if config.observations == "pixels":
        hidden = dense(inputs, "features", config.num_features, next(seeds))
        hidden = normalized(hidden, "features_norm")
    if actions is not None and not is_mlp:
        hidden = keras.ops.concatenate([hidden, actions], axis=1)
    for index, size in enumerate(sizes):
        hidden = dense(hidden, f"dense_{index}", size, next(seeds))
        if index == 1 and is_mlp and actions is not None:
            own_seed = seed + len(sizes) + 10
            hidden += dense(actions, "joining", size, own_seed, use_bias=False)
        if is_mlp:
            hidden = keras.ops.relu(hidden)
        elif index:
            hidden = keras.ops.elu(hidden)
        else:
            hidden = normalized(hidden, "norm")
    small = keras.initializers.RandomUniform(-_SMALL, _SMALL, seed=next(seeds))
    outputs = keras.layers.Dense(kernel_initializer=small, **last)(hidden)
    together = inputs if actions is None else [inputs, actions]
    return keras.Model(together, outputs, name=name)


def training_flops(
    policy: keras.Model, critic: keras.Model, torso: keras.Model | None
) -> int:
    """Returns the floating-point operations of one transition in a learner step.

    Two per multiply-add of convolutions and dense layers; norms, activations, losses
    and updates are left out, as for ResNet-50. The target networks look at the next
    observation once. The critic's loss trains torso and critic; the policy's goes
    through a critic whose weights need no gradient, back to the action. Inputs need no
    gradient.
    """
    seeing = []
    if torso is not None:
        convs = [each for each in torso.layers if hasattr(each, "kernel")]
        seeing = [math.prod(c.output.shape[1:3]) * products_of(c) for c in convs]
    acting, judging = (
        [
            products_of(layer)
            for layer in network.layers
            if isinstance(layer, keras.layers.Dense) and layer.name != "joining"
        ]
        for network in (policy, critic)
    )
    joining = sum(
        products_of(layer) for layer in critic.layers if layer.name == "joining"
    )
    # Layers of the critic that the gradient of an action does not reach.
    before = judging[: (torso is not None) + 2 * bool(joining)]
    of_critic = sum(judging) + joining
    target = sum(seeing) + sum(acting) + of_critic
    inputs = seeing[:1] or judging[:1]
    learning = 3 * (sum(seeing) + of_critic) - sum(inputs) - joining
    improving = 3 * sum(acting) - acting[0] + 2 * of_critic - sum(before)
    improving += 2 * critic.output_shape[-1]  # the mean return, and its gradient
    return 2 * (target + learning + improving)


def critic_loss(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy from target to predicted distributions of returns.

    Of logits and probabilities [examples, num_atoms] float32, for each example.
    """
    return tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(target), logits)


def divergence(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns KL(target || prediction), the priority of replay: 0 if perfect.

    Shapes are those of ``critic_loss``.
    """
    entropy = -tf.reduce_sum(tf.math.xlogy(target, target), axis=1)
    return tf.maximum(critic_loss(logits, target) - entropy, 0.0)


def policy_loss(
    action: tf.Tensor, value_gradient: tf.Tensor, *, clip_norm: float
) -> tf.Tensor:
    """Returns a loss whose gradient for the actions is minus that of their value.

    The deterministic policy gradient (Silver et al. 2014) is dQ/da da/dtheta. As in
    Acme, 0.5 |a - stop(a + dQ/da)|^2 has it as its gradient, where the norm of dQ/da
    is first clipped, per example, unless ``clip_norm`` is 0. Both tensors are
    [examples, action_size] float32, the losses [examples].
    """
    if clip_norm:
        value_gradient = tf.clip_by_norm(value_gradient, clip_norm, axes=1)
    better = tf.stop_gradient(action + value_gradient)
    return 0.5 * tf.reduce_sum(tf.square(better - action), axis=1)


# A distribution assigns a probability to each of N evenly spaced returns, the atoms. A
# Bellman backup moves the atoms, and their probabilities are projected back onto the
# original ones: equation 7.

# How far beyond the last atom a return does not count as clipped, in spacings.
_RIM = 1e-3


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

    Rewards and discounts are [examples], probabilities [examples, num_atoms], the
    evenly spaced atoms [num_atoms], all float32. The second result, [examples], is the
    probability that was clipped.
    """
    num_atoms = atoms.shape[0]
    spacing = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    returns = reward[:, None] + discount[:, None] * atoms[None, :]
    # In units of the spacing, from the lowest atom: 0 to num_atoms - 1.
    places = (returns - atoms[0]) / spacing
    last = tf.cast(num_atoms - 1, tf.float32)
    # Rounding can put an atom at the end slightly outside; that is not clipping.
    is_outside = (places < -_RIM) | (places > last + _RIM)
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


class Learner:
    """Networks, their target copies, optimizers and the step.

    ``learn(inputs)`` runs a step on an iterator of batches of ``make_replay``.
    ``torso`` (None of states), ``policy`` and ``critic`` are Keras models.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: D4PGConfig,
        spec: EnvironmentSpec,
        *,
        seed: int,
    ) -> None:
        self.config = config
        self._repl = repl
        self.num_steps = 0
        ends = config.lowest_return, config.highest_return
        self._atoms = np.linspace(*ends, config.num_atoms, dtype=np.float32)
        self.differentiate = compiled(self.loss_and_gradients, config.jit)
        with repl.context():
            self.torso, self.policy, self.critic = make_networks(
                config, spec, seed=seed
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
            self._of_policy = self._adam(
                config.policy_learning_rate, self.policy.trainable_variables
            )
            self._of_critic = self._adam(
                config.critic_learning_rate, self._critic_variables
            )
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

    def _adam(self, rate: float, variables: Any) -> replicator.ReplicatedOptimizer:
        optimizer = self._repl.wrap_optimizer(
            keras.optimizers.Adam(rate, epsilon=1e-8),
            global_clipnorm=self.config.global_clip_norm or None,
        )
        optimizer.build(variables)
        return optimizer

    def learn(self, inputs: Any) -> Any:
        """Runs one step; targets are copied before the first, as in Acme, and later."""
        if self.num_steps % self.config.target_update_period == 0:
            self._repl.run(self.copy_targets)
        outputs = self._repl.run(self.step_fn, inputs)
        self.num_steps += 1
        return outputs

    def copy_targets(self) -> tf.Tensor:
        for network, targets in zip(self._networks, self._targets, strict=True):
            for target, variable in zip(
                targets, network.trainable_variables, strict=True
            ):
                target.assign(variable)
        return tf.constant(0)

    def step_fn(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        used = ("observation", "action", "next_observation", "reward", "discount")
        outputs, critic_gradients, policy_gradients = self.differentiate(
            {name: batch[name] for name in used}, self._weights(batch)
        )
        # Both use the same weights, so neither is applied before both are computed.
        self._of_critic.apply(critic_gradients, self._critic_variables)
        self._of_policy.apply(policy_gradients, self.policy.trainable_variables)
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
            logits = self.critic([features, batch["action"]])
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
        logits = _with_weights(self.critic, critic, [features, action])
        discount = batch["discount"] * self.config.discount
        return backup(batch["reward"], discount, tf.nn.softmax(logits), atoms)

    def _policy_gradients(
        self, features: tf.Tensor, atoms: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the deterministic policy gradient and the mean value."""
        clip_norm = self.config.value_gradient_clip_norm
        with tf.GradientTape() as tape:
            action = self.policy(features)
            with tf.GradientTape(watch_accessed_variables=False) as of_value:
                of_value.watch(action)
                logits = self.critic([features, action])
                values = tf.linalg.matvec(tf.nn.softmax(logits), atoms)
            with tape.stop_recording():
                gradient = of_value.gradient(values, action)
            losses = policy_loss(action, gradient, clip_norm=clip_norm)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.policy.trainable_variables)
        return gradients, tf.reduce_mean(values)

    def policy_variables(self) -> dict[str, Any]:
        """Returns the variables of torso and policy, by layer and name."""
        return {
            f"{layer.name}/{variable.name}": variable
            for network in (self.torso, self.policy)
            for layer in (network.layers if network else ())
            for variable in layer.trainable_variables
        }

    def policy_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights that actors act by."""
        variables = self.policy_variables().items()
        return {name: variable.numpy() for name, variable in variables}


def _with_weights(network: Any, weights: list[Any], inputs: Any) -> Any:
    """Returns the output of a network with the given weights instead of its own."""
    outputs, _ = network.stateless_call(weights, [], inputs)
    return outputs
