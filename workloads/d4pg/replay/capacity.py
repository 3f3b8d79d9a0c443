"""The capacity of a replay, and its minimum; without TensorFlow.

The replay consists of ring buffers of records, one per environment (``streams``).
Records near a ring's write head can be overwritten while they are read, so they are
never sampled.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.d4pg.config import D4PGConfig

_MARGIN = 16
_MARGIN_SHARE = 50  # one record in this many


def margin(steps_per_stream: int) -> int:
    """Returns the records before the write head of a ring that are never sampled."""
    return _MARGIN + steps_per_stream // _MARGIN_SHARE


def num_transitions(
    steps_per_stream: int, *, num_return_steps: int, num_stacked_frames: int
) -> int:
    """Returns how many records of a full ring can start a transition."""
    around = num_return_steps + num_stacked_frames - 1
    return steps_per_stream - margin(steps_per_stream) - around


def least_steps_per_stream(
    num_needed: int, *, num_return_steps: int, num_stacked_frames: int
) -> int:
    """Returns the smallest ring that holds this many transitions.

    In a ring smaller than twice the margin, most samples would be overwritten while
    they are read.
    """
    size = num_needed
    while True:
        found = num_transitions(
            size,
            num_return_steps=num_return_steps,
            num_stacked_frames=num_stacked_frames,
        )
        if found >= max(num_needed, size / 2):
            return size
        size += 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The share of one pipeline in a trial's actors and replay."""

    num_actors: int  # At least one.
    capacity: int  # Environment steps that it stores.
    min_size: int  # Environment steps before its first batch.


def share(config: D4PGConfig, pipeline_id: int, num_pipelines: int) -> Share:
    """Returns the share of one pipeline; shares are as equal as possible."""
    until = config.num_actors * (pipeline_id + 1) // num_pipelines
    return Share(
        num_actors=max(until - config.num_actors * pipeline_id // num_pipelines, 1),
        capacity=math.ceil(config.replay_capacity / num_pipelines),
        min_size=math.ceil(config.min_replay_size / num_pipelines),
    )


def check_rings(config: D4PGConfig, *, num_pipelines: int = 1) -> None:
    """Raises unless the rings of each pipeline's replay are large enough."""
    shares = [share(config, index, num_pipelines) for index in range(num_pipelines)]
    # Capacities are equal, so the pipeline with most environments has the least each.
    num_actors = max(found.num_actors for found in shares)
    num_streams = num_actors * config.environments_per_actor
    among = f" on each of {num_pipelines} workers" if num_pipelines > 1 else ""
    around = {
        "num_return_steps": config.num_return_steps,
        "num_stacked_frames": config.num_stacked_frames,
    }
    steps_per_stream = math.ceil(shares[0].capacity / num_streams)
    least = least_steps_per_stream(1, **around)
    if steps_per_stream < least:
        raise ValueError(
            f"option replay_capacity={config.replay_capacity!r} keeps "
            f"{steps_per_stream} environment steps of each environment, fewer than the "
            f"{least} that transitions of num_return_steps={config.num_return_steps!r} "
            "need besides those being written: use at least "
            f"{num_pipelines * num_streams * least} with {num_streams} environments"
            f"{among}, or fewer of them"
        )
    held = num_streams * num_transitions(steps_per_stream, **around)
    if shares[0].min_size > held:
        needed = math.ceil(shares[0].min_size / num_streams)
        least = least_steps_per_stream(needed, **around)
        raise ValueError(
            f"option min_replay_size={config.min_replay_size!r} is more than the "
            f"{num_pipelines * held} transitions that replay_capacity="
            f"{config.replay_capacity!r} holds besides those being written{among}: "
            "use at most that, or a replay_capacity of at least "
            f"{num_pipelines * num_streams * least}"
        )


def check_learning(config: D4PGConfig, *, global_batch_size: int) -> None:
    """Raises unless the replay of a trial can feed its learner."""
    capacity, asked = config.replay_capacity, config.samples_per_insert
    if capacity < global_batch_size:
        raise ValueError(
            f"option replay_capacity={capacity!r} is less than the {global_batch_size} "
            "transitions of one learner step: use at least as many, or fewer per "
            "replica (--per-replica-batch-size)"
        )
    if asked and global_batch_size / asked > capacity:
        raise ValueError(
            f"option samples_per_insert={asked!r} requires "
            f"{global_batch_size / asked:,.0f} environment steps before each learner "
            f"step of {global_batch_size} transitions, but replay_capacity="
            f"{capacity!r} stores fewer: use at least "
            f"{_round_up(global_batch_size / capacity)}, or 0 for no limit"
        )


def _round_up(value: float) -> float:
    """Returns the next higher number of two digits, for a suggestion."""
    digits = 1 - math.floor(math.log10(value))
    return round(math.ceil(value * 10**digits) / 10**digits, max(digits, 0))
