"""What the harness measures of D4PG: settings, presets, metrics.

The planner imports this module, so it imports neither TensorFlow nor dm_control.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping

from workloads import spec
from workloads.spec import limited

from . import capacity

NETWORKS = ("mlp", "layer_norm_mlp")
OBSERVATIONS = ("state", "pixels")
REPLAYS = ("uniform", "prioritized")
ACTORS = ("processes", "ray")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class D4PGConfig(spec.TrainingConfig):
    """Settings; defaults are Tassa et al. 2018, else Barth-Maron et al. 2018."""

    observations: str = limited(
        "state",
        "state (positions, velocities), or stacked frames",
        choices=OBSERVATIONS,
    )
    network: str = limited(
        "mlp", "the paper's (ReLU), or Acme's layer_norm_mlp", choices=NETWORKS
    )
    policy_sizes: str = limited("300,200", "units of the policy's hidden layers")
    critic_sizes: str = limited(
        "400,300", "the critic's; in an mlp the action joins at the second"
    )
    num_conv_filters: int = limited(32, "of two convolutions over frames", low=1)
    num_features: int = limited(50, "outputs of the layer after them", low=1)
    num_atoms: int = limited(101, "returns that the critic gives probabilities", low=2)
    lowest_return: float = limited(-150.0, "the first atom")
    highest_return: float = limited(150.0, "the last atom")
    num_return_steps: int = limited(
        5, "environment steps whose rewards a transition sums", low=1
    )
    discount: float = limited(
        0.99, "of a reward, per environment step", low=0.0, high=1.0
    )
    policy_learning_rate: float = limited(1e-4, "Adam's", low=0.0)
    critic_learning_rate: float = limited(
        1e-4, "Adam's, also of the convolutions", low=0.0
    )
    value_gradient_clip_norm: float = limited(
        1.0, "largest norm of an example's dQ/da; 0 for no limit", low=0.0
    )
    global_clip_norm: float = limited(
        40.0, "largest norm of a network's averaged gradient; 0 for no limit", low=0.0
    )
    target_update_period: int = limited(
        100, "learner steps between copies into the target networks", low=1
    )
    replay: str = limited("prioritized", "or uniform", choices=REPLAYS)
    replay_capacity: int = limited(
        1_000_000, "environment steps that are stored, in the whole trial", low=1
    )
    min_replay_size: int = limited(
        1_000, "environment steps before the first learner step", low=1
    )
    samples_per_insert: float = limited(
        0.0, "transitions sampled per environment step; 0 for no limit", low=0.0
    )
    priority_exponent: float = limited(
        0.6, "alpha of prioritized replay", low=0.0, high=1.0
    )
    importance_exponent: float = limited(
        0.4, "beta of prioritized replay", low=0.0, high=1.0
    )
    actors: str = limited(
        "processes",
        "processes of this machine, or of the ray cluster that RAY_ADDRESS names",
        choices=ACTORS,
    )
    num_actors: int = limited(32, "processes, in the whole trial", low=1)
    environments_per_actor: int = limited(1, "that each of them steps together", low=1)
    action_repeat: int = limited(1, "control steps that an action is held for", low=1)
    noise_low: float = limited(
        1 / 32, "standard deviation of the first actor's noise, of actions from -1 to 1"
    )
    noise_high: float = limited(
        1.0, "the last actor's; those between are spaced logarithmically"
    )
    publish_period: int = limited(
        100, "learner steps between copies of the policy for the actors", low=1
    )
    actor_niceness: int = limited(0, "relative to the learner", low=0, below=20)
    # An interval needs at least two episodes.
    num_evaluation_episodes: int = limited(20, "without noise, per evaluation", low=2)

    def __post_init__(self) -> None:
        spec.TrainingConfig.__post_init__(self)
        ray = importlib.util.find_spec("ray") if self.actors == "ray" else None
        # A directory of that name would be found too, such as Ray's own below /tmp.
        if self.actors == "ray" and (ray is None or ray.origin is None):
            raise ValueError(
                "actors='ray' needs Ray, which is not installed here: run pip install "
                "'replicator-harness[distributed]', or use actors='processes'"
            )
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

    def noise_deviation(self, stream_id: int, num_streams: int) -> float:
        """Returns the deviation of one environment's noise (Tassa et al. 2018).

        Evenly spaced in the logarithm; a single environment has the geometric mean.
        """
        low, high = self.noise_low, self.noise_high
        if num_streams == 1:
            return float((low * high) ** 0.5)
        return float(low * (high / low) ** (stream_id / (num_streams - 1)))

    @property
    def policy_layers(self) -> tuple[int, ...]:
        return _sizes("policy_sizes", self.policy_sizes)

    @property
    def critic_layers(self) -> tuple[int, ...]:
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


# Those that there are without actors.
_OF_LEARNER = ("num_learner_steps", "num_transitions", "clipped")

LEARNED = (
    spec.Metric(
        name="episode_return",
        title="Episode return",
        unit="return",
        protocol="mean of num_evaluation_episodes episodes without noise",
        is_higher_better=True,
        of=lambda returns: returns,
    ),
)


def _window_metric(
    name: str, unit: str, ratio: str, protocol: str, is_higher_better: bool | None
) -> spec.Metric:
    """A total over others, ``a / b``; none where one of these is 0, or no actor is."""
    part, *wholes = ratio.split(" / ")

    def each(
        totals: Mapping[str, float],
    ) -> float | None:  # of all processes of a trial
        if part not in _OF_LEARNER and not totals["num_pipelines"]:
            return None
        value = totals[part]
        for whole in wholes:
            if not totals[whole]:
                return None
            value /= totals[whole]
        return value

    words = name.replace("_", " ").replace(" per sec", " per second")
    return spec.Metric(
        name=name,
        title=words.capitalize(),
        unit=unit,
        protocol=f"{protocol}, over the measured window",
        is_higher_better=is_higher_better,
        is_of_window=True,
        of=each,
    )


OF_WINDOW = (
    _window_metric(
        "learner_steps_per_sec",
        "learner steps/s",
        "num_learner_steps / window_sec",
        "learner steps of the trial",
        True,
    ),
    _window_metric(
        "transitions_per_sec",
        "transitions/s",
        "num_transitions / window_sec",
        "transitions of all learner steps",
        True,
    ),
    _window_metric(
        "clipped_target_share",
        "ratio",
        "clipped / num_processes",
        "probability of the targets outside the atoms, mean of the last steps",
        False,
    ),
    _window_metric(
        "environment_steps_per_sec",
        "environment steps/s",
        "num_environment_steps / window_sec",
        "environment steps of all actors",
        True,
    ),
    _window_metric(
        "learner_wait_share",
        "ratio",
        "wait_sec / num_pipelines / window_sec",
        "time that sampling waited for actors",
        False,
    ),
    _window_metric(
        "finished_episodes", "episodes", "num_episodes", "episodes that ended", None
    ),
    _window_metric(
        "policy_lag",
        "learner steps",
        "policy_lag / num_processes",
        "learner steps that the weights of actors are behind, mean of the last steps",
        False,
    ),
    _window_metric(
        "refused_environment_steps",
        "environment steps",
        "num_refused",
        "steps that were not finite",
        False,
    ),
    _window_metric(
        "replaced_actors",
        "actors",
        "num_restarts",
        "actors that failed and were started again",
        False,
    ),
    _window_metric(
        "replay_ratio",
        "transitions/step",
        "num_sampled / num_environment_steps",
        "sampled transitions per environment step",
        None,
    ),
    _window_metric(
        "actor_idle_share",
        "ratio",
        "idle_sec / elapsed_sec",
        "time that actors waited for the learner",
        False,
    ),
)


WORKLOAD = spec.WorkloadInfo(
    name="d4pg",
    version="1",
    example_unit="transitions",
    description="D4PG on the DeepMind Control Suite: actors, replay, learner",
    train="workloads.d4pg.train",
    program="workloads.d4pg.program:D4PGProgram",
    presets=(
        spec.PresetInfo(
            name="smoke",
            description="seconds, for tests: state, 32 units",
            data="cartpole:swingup",
            per_replica_batch_size=32,
            num_warmup_steps=5,
            num_measured_steps=20,
            num_evaluations=2,
            config=dataclasses.replace(
                _LAPTOP,
                policy_sizes="32,32",
                critic_sizes="32,32",
                replay_capacity=20_000,
                min_replay_size=200,
                environments_per_actor=1,
                num_evaluation_episodes=2,
            ),
        ),
        spec.PresetInfo(
            name="laptop",
            description="minutes per sweep on CPU cores: state, 256 units",
            data="cartpole:swingup",
            per_replica_batch_size=256,
            num_warmup_steps=50,
            num_measured_steps=400,
            budget="120s",
            num_evaluations=6,
            config=_LAPTOP,
        ),
        spec.PresetInfo(
            name="laptop_pixels",
            description="half an hour per sweep on CPUs: pixels, 16 filters",
            data="cartpole:balance",
            per_replica_batch_size=64,
            num_warmup_steps=5,
            num_measured_steps=50,
            budget="500s",
            num_evaluations=6,
            config=_LAPTOP_PIXELS,
        ),
        spec.PresetInfo(
            name="gpu",
            description="GPUs such as H100: pixels, synthetic transitions",
            data=spec.SYNTHETIC,
            per_replica_batch_size=256,
            num_warmup_steps=50,
            num_measured_steps=200,
            options=spec.GPU_OPTIONS,
            config=D4PGConfig(
                observations="pixels", samples_per_insert=32.0, num_actors=8
            ),
        ),
        spec.PresetInfo(
            name="paper",
            description="the published hyperparameters: pixels, 32 actors",
            data="walker:walk",
            per_replica_batch_size=256,
            num_warmup_steps=50,
            num_measured_steps=200,
            config=D4PGConfig(observations="pixels"),
        ),
    ),
    default_preset="laptop",
    metrics=LEARNED + OF_WINDOW,
    builtin_data=("cartpole:swingup", "cartpole:balance", spec.SYNTHETIC),
    other_data="another domain:task of the control suite",
    data_module="workloads.d4pg.control",
    machine_module="workloads.d4pg.capacity",
    syncs_because="actors and replay use the results of each learner step",
    equivalence=spec.EquivalenceCheck(
        options={"jit": "off", "tf32": False},
        data=spec.SYNTHETIC,
        remark="synthetic transitions, since actors do not repeat themselves",
    ),
)
