"""Counters of the actors, read from the streams that they write."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workloads.d4pg.replay.streams import StepStreams


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ActorCounters:
    """Counters of all actors so far.

    Attributes:
      num_environment_steps: Interactions that are or were in the replay.
      num_episodes: Episodes that ended.
      last_returns: Sum of rewards of the last episode of each stream that ended one.
      idle_sec: Total time that actors have waited for the learner.
      elapsed_sec: Total time that actors have run.
      num_refused: Environment steps that were not finite.
      num_restarts: Actors that were replaced.
      oldest_version: Lowest version of the weights in use; -1 for none yet.
      newest_version: Highest version in use.
      mean_version: Mean over actors.
    """

    num_environment_steps: int
    num_episodes: int
    last_returns: tuple[float, ...]
    idle_sec: float
    elapsed_sec: float
    num_refused: int
    num_restarts: int
    oldest_version: int
    newest_version: int
    mean_version: float


def count(streams: StepStreams, num_restarts: int) -> ActorCounters:
    """Returns the counters of the actors of ``streams``."""
    has_ended = streams.num_episodes > 0
    num_episodes = int(streams.num_episodes.sum())
    return ActorCounters(
        # A final observation is a record, but no action was taken there.
        num_environment_steps=streams.num_inserted() - num_episodes,
        num_episodes=num_episodes,
        last_returns=tuple(streams.last_return[has_ended].tolist()),
        idle_sec=float(streams.idle_sec.sum()),
        elapsed_sec=float(streams.elapsed_sec.sum()),
        num_refused=int(streams.num_refused.sum()),
        num_restarts=num_restarts,
        oldest_version=int(streams.version.min()),
        newest_version=int(streams.version.max()),
        mean_version=float(np.mean(streams.version)),
    )
