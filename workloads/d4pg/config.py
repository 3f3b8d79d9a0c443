"""Configuration of D4PG: the published settings and the presets.

The planner imports this module, so it imports neither TensorFlow nor dm_control.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from workloads.d4pg.acting.settings import check_ray
from workloads.d4pg.replay import capacity
from workloads.options import (
    EXTERNAL_WRITES,
    apply_options,
    check_choice,
    check_jit,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

NETWORKS = ("mlp", "layer_norm_mlp")
OBSERVATIONS = ("state", "pixels")
REPLAYS = ("uniform", "prioritized")
ACTORS = ("processes", "ray")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class D4PGConfig:
    """Settings of computation and training.

    Defaults are those of Tassa et al. 2018 ("DeepMind Control Suite"), where these
    differ from Barth-Maron et al. 2018 ("D4PG").

    Attributes:
      observations: ``state`` (positions and velocities) or ``pixels`` (stacked frames).
      jit: ``off``, ``compute`` (XLA compiles forward and backward pass) or ``step``
        (also collectives and updates).
      tf32: Whether float32 products and convolutions use TF32 where GPUs have it.
      external_writes: ``never`` promises the replicator that no variable is written
        outside its steps, so that it need not look.
      network: ``mlp`` (the paper's, ReLU) or ``layer_norm_mlp`` (Acme's).
      policy_sizes: Units of the policy's hidden layers, such as ``300,200``.
      critic_sizes: Units of the critic's hidden layers; in an ``mlp`` the action joins
        at the second.
      num_conv_filters: Filters of each of the two convolutions over frames.
      num_features: Outputs of the layer after them.
      num_atoms: Returns (atoms) to which the critic assigns probabilities.
      lowest_return: The first atom.
      highest_return: The last atom.
      num_return_steps: n: environment steps whose rewards a transition sums.
      discount: Discount of a reward per environment step.
      policy_learning_rate: Learning rate of Adam.
      critic_learning_rate: Learning rate of Adam, also for the convolutions.
      value_gradient_clip_norm: Largest norm of dQ/da of an example; 0 for no limit.
      global_clip_norm: Largest norm of a network's gradient, averaged over replicas;
        0 for no limit.
      target_update_period: Learner steps from one copy of the weights into the target
        networks to the next.
      replay: ``uniform`` or ``prioritized``.
      replay_capacity: Environment steps that are stored, in the whole trial.
      min_replay_size: Environment steps before the first learner step.
      samples_per_insert: Transitions that are sampled per environment step; 0 for no
        limit.
      priority_exponent: alpha of prioritized replay.
      importance_exponent: beta of prioritized replay.
      actors: ``processes`` of this machine, or of a ``ray`` cluster: the one that
        ``RAY_ADDRESS`` names.
      num_actors: Actor processes, in the whole trial.
      environments_per_actor: Environments that each of them steps together.
      action_repeat: Control steps that an action is held for.
      noise_low: Standard deviation of the first actor's exploration noise, where
        actions reach from -1 to 1.
      noise_high: That of the last actor; those between are spaced logarithmically.
      publish_period: Learner steps from one copy of the policy for the actors to the
        next.
      actor_niceness: Niceness of actors relative to the learner, from 0 to 19.
      num_evaluation_episodes: Episodes without noise per evaluation.
    """

    observations: str = "state"
    jit: str = "off"
    tf32: bool = True
    external_writes: str = "detect"
    network: str = "mlp"
    policy_sizes: str = "300,200"
    critic_sizes: str = "400,300"
    num_conv_filters: int = 32
    num_features: int = 50
    num_atoms: int = 101
    lowest_return: float = -150.0
    highest_return: float = 150.0
    num_return_steps: int = 5
    discount: float = 0.99
    policy_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    value_gradient_clip_norm: float = 1.0
    global_clip_norm: float = 40.0
    target_update_period: int = 100
    replay: str = "prioritized"
    replay_capacity: int = 1_000_000
    min_replay_size: int = 1_000
    samples_per_insert: float = 0.0
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    actors: str = "processes"
    num_actors: int = 32
    environments_per_actor: int = 1
    action_repeat: int = 1
    noise_low: float = 1 / 32
    noise_high: float = 1.0
    publish_period: int = 100
    actor_niceness: int = 0
    num_evaluation_episodes: int = 20

    def __post_init__(self) -> None:
        check_choice("observations", self.observations, OBSERVATIONS)
        check_choice("network", self.network, NETWORKS)
        check_jit(self.jit)
        check_choice("external_writes", self.external_writes, EXTERNAL_WRITES)
        check_choice("replay", self.replay, REPLAYS)
        check_choice("actors", self.actors, ACTORS)
        if self.actors == "ray":
            check_ray()
        for name in ("policy_sizes", "critic_sizes"):
            _sizes(name, getattr(self, name))
        if self.network == "mlp" and len(self.critic_layers) < 2:  # noqa: PLR2004
            raise ValueError(
                f"option critic_sizes={self.critic_sizes!r} must have two sizes or "
                "more, because the action joins at the second layer: use for example "
                "'400,300', or network 'layer_norm_mlp'"
            )
        check_range("num_atoms", self.num_atoms, low=2)
        if self.lowest_return >= self.highest_return:
            raise ValueError(
                f"option lowest_return={self.lowest_return!r} must be below "
                f"highest_return={self.highest_return!r}, because returns lie between "
                "them: use for example -150 and 150"
            )
        for name in (
            "num_conv_filters",
            "num_features",
            "num_return_steps",
            "target_update_period",
            "replay_capacity",
            "min_replay_size",
            "num_actors",
            "environments_per_actor",
            "action_repeat",
            "publish_period",
        ):
            check_range(name, getattr(self, name), low=1)
        # An interval needs at least two episodes.
        check_range("num_evaluation_episodes", self.num_evaluation_episodes, low=2)
        for name in (
            "policy_learning_rate",
            "critic_learning_rate",
            "value_gradient_clip_norm",
            "global_clip_norm",
            "samples_per_insert",
        ):
            check_range(name, getattr(self, name), low=0.0)
        for name in ("discount", "priority_exponent", "importance_exponent"):
            check_range(name, getattr(self, name), low=0.0, high=1.0)
        check_range("actor_niceness", self.actor_niceness, low=0, below=20)
        if not 0.0 < self.noise_low <= self.noise_high:
            raise ValueError(
                f"option noise_low={self.noise_low!r} must be above 0 and at most "
                f"noise_high={self.noise_high!r}: use for example 0.03125 and 1"
            )
        capacity.check_rings(self)

    @property
    def num_stacked_frames(self) -> int:
        """Frames of an observation from pixels (Tassa et al. 2018); 1 for states."""
        return 3 if self.observations == "pixels" else 1

    @property
    def policy_layers(self) -> tuple[int, ...]:
        """Units of the policy's hidden layers."""
        return _sizes("policy_sizes", self.policy_sizes)

    @property
    def critic_layers(self) -> tuple[int, ...]:
        """Units of the critic's hidden layers."""
        return _sizes("critic_sizes", self.critic_sizes)


def _sizes(name: str, text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"option {name}={text!r} must be the units of each layer, separated by "
            "commas: use for example '300,200'"
        )
    return sizes


def make_config(preset: str, options: Mapping[str, Any]) -> D4PGConfig:
    """Returns the preset's configuration with ``options`` in place of its values.

    Args:
      preset: A name in ``PRESETS``.
      options: Fields of ``D4PGConfig`` to override.

    Raises:
      ValueError: Unknown preset or option, or a value of a wrong type or range.
    """
    return apply_options("d4pg", PRESETS, preset, options)


_LAPTOP = D4PGConfig(
    network="layer_norm_mlp",
    policy_sizes="256,256",
    critic_sizes="256,256",
    num_atoms=51,
    policy_learning_rate=3e-4,
    critic_learning_rate=3e-4,
    replay="uniform",
    replay_capacity=200_000,
    samples_per_insert=32.0,
    num_actors=2,
    environments_per_actor=2,
    # Four environments cannot cover the noise range of 32 actors: from 1/32, most of
    # them would explore little.
    noise_low=0.2,
    publish_period=10,
    actor_niceness=5,
)

# Half the filters are a quarter of the convolutions' work. Holding an action for four
# control steps makes 250 decisions of an episode, and rewards that are four times as
# large, which the atoms must hold.
_LAPTOP_PIXELS = dataclasses.replace(
    _LAPTOP,
    observations="pixels",
    num_conv_filters=16,
    action_repeat=4,
    lowest_return=0.0,
    highest_return=400.0,
    # A policy that learns as fast as a critic that has seen nothing yet saturates.
    policy_learning_rate=1e-4,
    critic_learning_rate=1e-3,
    replay_capacity=50_000,
    samples_per_insert=16.0,
    num_evaluation_episodes=10,
)

PRESETS: dict[str, D4PGConfig] = {
    "smoke": dataclasses.replace(
        _LAPTOP,
        policy_sizes="32,32",
        critic_sizes="32,32",
        replay_capacity=20_000,
        min_replay_size=200,
        environments_per_actor=1,
        num_evaluation_episodes=2,
    ),
    "laptop": _LAPTOP,
    "laptop_pixels": _LAPTOP_PIXELS,
    "gpu": D4PGConfig(observations="pixels", samples_per_insert=32.0, num_actors=8),
    "paper": D4PGConfig(observations="pixels"),
}
