"""Whether this machine can run a plan: the experience that a replay holds, its memory.

The replay consists of ring buffers of records, one per environment (``streams``).
Records near a ring's write head can be overwritten while they are read, so they are
never sampled.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

from workloads.spec import SYNTHETIC

if TYPE_CHECKING:
    from .control import EnvironmentSpec
    from .study import D4PGConfig

_MARGIN = 16
_MARGIN_SHARE = 50  # one record in this many
_GB = 1_000_000_000
_SUM_BYTES, _OWNER_BYTES = 8, 8


def margin(steps_per_stream: int) -> int:
    """Returns the records before the write head of a ring that are never sampled."""
    return _MARGIN + steps_per_stream // _MARGIN_SHARE


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The actors and the replay of one pipeline."""

    num_actors: int  # At least one.
    num_streams: int  # Rings, one per environment.
    steps_per_stream: int  # Records that one ring holds.
    min_size: int  # Environment steps before its first batch.

    @classmethod
    def of(
        cls, config: D4PGConfig, pipeline_id: int = 0, num_pipelines: int = 1
    ) -> Share:
        """Returns the share of one pipeline; shares are as equal as possible."""
        until = config.num_actors * (pipeline_id + 1) // num_pipelines
        num_actors = max(until - config.num_actors * pipeline_id // num_pipelines, 1)
        num_streams = num_actors * config.environments_per_actor
        capacity = math.ceil(config.replay_capacity / num_pipelines)
        return cls(
            num_actors=num_actors,
            num_streams=num_streams,
            steps_per_stream=math.ceil(capacity / num_streams),
            min_size=math.ceil(config.min_replay_size / num_pipelines),
        )

    def streams_of(self, actor_id: int) -> range:
        """Returns the streams of one actor, one per environment."""
        count = self.num_streams // self.num_actors
        return range(actor_id * count, (actor_id + 1) * count)

    def num_bytes(self, environment: EnvironmentSpec, *, is_prioritized: bool) -> int:
        """Returns the bytes of a full replay: its records, and what priorities take."""
        record = math.prod(environment.observation_shape)
        record *= {"uint8": 1, "float32": 4}[environment.observation_dtype]
        # Besides: action, reward, discount and two flags.
        record += 4 * environment.action_size + 4 + 4 + 2
        num_records = self.num_streams * self.steps_per_stream
        total = num_records * record
        if is_prioritized:
            num_leaves = 1 << max(num_records - 1, 1).bit_length()
            total += 2 * num_leaves * _SUM_BYTES + num_records * _OWNER_BYTES
        return total

    def check_memory(
        self,
        config: D4PGConfig,
        environment: EnvironmentSpec,
        available: int | None = None,
    ) -> None:
        """Raises unless a full replay fits into the memory, by default this machine's.

        The rings are anonymous shared memory: they are limited by the memory of the
        machine and of a container, not by the size of ``/dev/shm``. Their pages are
        allocated when written, so a replay that does not fit kills a trial late.
        """
        is_prioritized = config.replay == "prioritized"
        needed = self.num_bytes(environment, is_prioritized=is_prioritized)
        available = available_bytes() if available is None else available
        if needed <= available:
            return
        fitting = math.floor(config.replay_capacity * available / needed)
        # Slightly less, with two digits: other processes need memory, too.
        fitting = round(fitting * 9 // 10, 2 - len(str(fitting)))
        raise ValueError(
            f"option replay_capacity={config.replay_capacity!r} needs "
            f"{_in_words(needed)} of memory for observations={config.observations!r}, "
            f"but {_in_words(available)} are available here: use less, such as "
            f"replay_capacity={fitting}, or another machine"
        )


def check_rings(config: D4PGConfig, *, num_pipelines: int = 1) -> None:
    """Raises unless the rings of each pipeline's replay are large enough."""
    shares = [Share.of(config, k, num_pipelines) for k in range(num_pipelines)]
    # Capacities are equal, so the pipeline with most environments has the least each.
    most = max(shares, key=lambda one: one.num_streams)
    among = f" on each of {num_pipelines} workers" if num_pipelines > 1 else ""
    around = config.num_return_steps + config.num_stacked_frames - 1
    least = needed = math.ceil(most.min_size / most.num_streams)
    # The smallest ring with so many transitions, and twice its margin.
    while least - margin(least) - around < max(needed, least / 2):
        least += 1
    if most.steps_per_stream < least:
        raise ValueError(
            f"option replay_capacity={config.replay_capacity!r} keeps "
            f"{most.steps_per_stream} environment steps of each environment, fewer "
            f"than the {least} of min_replay_size={config.min_replay_size!r} and of "
            f"transitions of num_return_steps={config.num_return_steps!r}, besides "
            "those being written: use at least "
            f"{num_pipelines * most.num_streams * least} with {most.num_streams} "
            f"environments{among}, fewer of them, or a smaller min_replay_size"
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


def available_bytes() -> int:
    """Returns the memory that is still available, as the kernel estimates it."""
    import shutil  # the planner needs none of these
    import tempfile

    from replicator.core import cgroups

    if not hasattr(os, "memfd_create"):  # then the rings are in a file
        return shutil.disk_usage(tempfile.gettempdir()).free
    return cgroups.free_memory()


def check(
    config: D4PGConfig, *, data: str, global_batch_size: int, num_workers: int = 1
) -> None:
    """Raises unless this machine has OpenGL and the memory that a trial needs.

    Creates the environment once, in a separate process, which takes about 2 s.
    """
    if data == SYNTHETIC:
        return
    check_learning(config, global_batch_size=global_batch_size)
    check_rings(config, num_pipelines=num_workers)
    from .evaluator import EvaluatorClient

    try:
        # Output of libraries on a missing driver is in the error.
        client = EvaluatorClient(data, config, seed=0, is_quiet=True)
    except RuntimeError as error:
        raise ValueError(
            f"data {data!r} cannot be created here ({error}): check the installation "
            "of dm-control and mujoco"
        ) from error
    client.close()
    Share.of(config).check_memory(config, client.spec)


def _in_words(num_bytes: int) -> str:
    unit, size = ("GB", _GB) if num_bytes >= _GB else ("MB", _GB / 1000)
    return f"{num_bytes / size:.3g} {unit}"
