"""Configuration of D4PG: the published settings and the presets.

The planner imports this module, so it imports neither TensorFlow nor dm_control.
"""

from __future__ import annotations

import dataclasses
import importlib.util

from workloads.d4pg import capacity
from workloads.spec import TrainingConfig, configurations, limited

NETWORKS = ("mlp", "layer_norm_mlp")
OBSERVATIONS = ("state", "pixels")
REPLAYS = ("uniform", "prioritized")
ACTORS = ("processes", "ray")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class D4PGConfig(TrainingConfig):
    """Settings of computation and training.

    Defaults are those of Tassa et al. 2018 ("DeepMind Control Suite"), where these
    differ from Barth-Maron et al. 2018 ("D4PG").
    """

    # ``state`` (positions and velocities) or ``pixels`` (stacked frames).
    observations: str = limited("state", choices=OBSERVATIONS)
    # ``mlp`` (the paper's, ReLU) or ``layer_norm_mlp`` (Acme's).
    network: str = limited("mlp", choices=NETWORKS)
    # Units of the policy's hidden layers, such as ``300,200``.
    policy_sizes: str = "300,200"
    # Units of the critic's hidden layers; in an ``mlp`` the action joins at the second.
    critic_sizes: str = "400,300"
    # Filters of each of the two convolutions over frames.
    num_conv_filters: int = limited(32, low=1)
    num_features: int = limited(50, low=1)  # Outputs of the layer after them.
    # Returns (atoms) to which the critic assigns probabilities.
    num_atoms: int = limited(101, low=2)
    lowest_return: float = -150.0  # The first atom.
    highest_return: float = 150.0  # The last atom.
    # n: environment steps whose rewards a transition sums.
    num_return_steps: int = limited(5, low=1)
    # Discount of a reward per environment step.
    discount: float = limited(0.99, low=0.0, high=1.0)
    policy_learning_rate: float = limited(1e-4, low=0.0)  # Learning rate of Adam.
    # Learning rate of Adam, also for the convolutions.
    critic_learning_rate: float = limited(1e-4, low=0.0)
    # Largest norm of dQ/da of an example; 0 for no limit.
    value_gradient_clip_norm: float = limited(1.0, low=0.0)
    # Largest norm of a network's gradient, averaged over replicas; 0 for no limit.
    global_clip_norm: float = limited(40.0, low=0.0)
    # Learner steps from one copy of the weights into the target networks to the next.
    target_update_period: int = limited(100, low=1)
    # ``uniform`` or ``prioritized``.
    replay: str = limited("prioritized", choices=REPLAYS)
    # Environment steps that are stored, in the whole trial.
    replay_capacity: int = limited(1_000_000, low=1)
    # Environment steps before the first learner step.
    min_replay_size: int = limited(1_000, low=1)
    # Transitions that are sampled per environment step; 0 for no limit.
    samples_per_insert: float = limited(0.0, low=0.0)
    # alpha of prioritized replay.
    priority_exponent: float = limited(0.6, low=0.0, high=1.0)
    # beta of prioritized replay.
    importance_exponent: float = limited(0.4, low=0.0, high=1.0)
    # ``processes`` of this machine, or of a ``ray`` cluster: the one that
    # ``RAY_ADDRESS`` names.
    actors: str = limited("processes", choices=ACTORS)
    num_actors: int = limited(32, low=1)  # Actor processes, in the whole trial.
    # Environments that each of them steps together.
    environments_per_actor: int = limited(1, low=1)
    action_repeat: int = limited(1, low=1)  # Control steps that an action is held for.
    # Standard deviation of the first actor's exploration noise, where actions reach
    # from -1 to 1.
    noise_low: float = 1 / 32
    # That of the last actor; those between are spaced logarithmically.
    noise_high: float = 1.0
    # Learner steps from one copy of the policy for the actors to the next.
    publish_period: int = limited(100, low=1)
    # Niceness of actors relative to the learner, from 0 to 19.
    actor_niceness: int = limited(0, low=0, below=20)
    # An interval needs at least two episodes.
    # Episodes without noise per evaluation.
    num_evaluation_episodes: int = limited(20, low=2)

    def __post_init__(self) -> None:
        TrainingConfig.__post_init__(self)
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
        if self.lowest_return >= self.highest_return:
            raise ValueError(
                f"option lowest_return={self.lowest_return!r} must be below "
                f"highest_return={self.highest_return!r}, because returns lie between "
                "them: use for example -150 and 150"
            )
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

make_config = configurations("d4pg", PRESETS)


def check_ray() -> None:
    """Raises unless Ray is installed."""
    found = importlib.util.find_spec("ray")
    # A directory of that name would be found too, such as Ray's own below /tmp.
    if found is None or found.origin is None:
        raise ValueError(
            "actors='ray' needs Ray, which is not installed here: run pip install "
            "'replicator-harness[distributed]', or use actors='processes'"
        )
