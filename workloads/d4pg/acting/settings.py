"""Settings of actors, and whether they can be started."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Any

from workloads.spec import check_range


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ActorSettings:
    """The environments of actors, their exploration, and their timeouts."""

    name: str  # ``domain:task``.
    observations: str = "state"  # ``state`` or ``pixels``.
    action_repeat: int = 1  # Control steps that an action is held for.
    num_actors: int = 1  # Processes.
    # Environments of a process; its policy batches them.
    environments_per_actor: int = 1
    # The policy as returned by ``PolicySpec.to_json``; empty for actors that always act
    # at random.
    policy: str = ""
    # Smallest standard deviation of the Gaussian noise on actions. Each environment has
    # its own, as each actor does in Tassa et al. 2018: evenly spaced in the logarithm,
    # up to ``sigma_max``.
    sigma_min: float = 1 / 32
    sigma_max: float = 1.0  # Largest standard deviation.
    num_stacked_frames: int = 3  # Frames that the policy sees at once, with pixels.
    seed: int = 0  # Seed of initial states and exploration.
    # Added to that of the parent, so that the learner is not starved.
    niceness: int = 0
    # Without a heartbeat for this long, an actor is killed and replaced.
    stuck_sec: float = 30.0
    start_sec: float = 120.0  # The same, until its first step.
    max_restarts: int = 10  # Total replacements of actors before the pool fails.

    def __post_init__(self) -> None:
        for name in ("num_actors", "environments_per_actor", "num_stacked_frames"):
            check_range(name, getattr(self, name), low=1)
        for name in ("niceness", "max_restarts", "sigma_min"):
            check_range(name, getattr(self, name), low=0)
        if not 0 <= self.sigma_min <= self.sigma_max:
            raise ValueError(
                f"option sigma_min={self.sigma_min!r} must be at most "
                f"sigma_max={self.sigma_max!r}"
            )

    @property
    def num_streams(self) -> int:
        """Environments of all actors; each writes a separate stream."""
        return self.num_actors * self.environments_per_actor

    def sigma(self, stream_id: int) -> float:
        """Returns the standard deviation of the noise in one environment.

        A single environment has the geometric mean of both ends.
        """
        if self.num_streams == 1:
            return float((self.sigma_min * self.sigma_max) ** 0.5)
        if not self.sigma_min:
            return self.sigma_max * stream_id / (self.num_streams - 1)
        ratio = self.sigma_max / self.sigma_min
        return float(self.sigma_min * ratio ** (stream_id / (self.num_streams - 1)))

    def to_json(self) -> str:
        """Returns JSON that ``from_json`` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ActorSettings:
        """Returns the settings from JSON."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


def check_ray() -> None:
    """Raises unless Ray is installed."""
    found = importlib.util.find_spec("ray")
    # A directory of that name would be found too, such as Ray's own below /tmp.
    if found is None or found.origin is None:
        raise ValueError(
            "actors='ray' needs Ray, which is not installed here: run pip install "
            "'replicator-harness[distributed]', or use actors='processes'"
        )
