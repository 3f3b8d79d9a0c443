"""The memory of a full replay, and the memory available on this machine.

The rings are anonymous shared memory (``shared_memory``): they are limited
by the memory of the machine and of a container, not by the size of ``/dev/shm``. Their
pages are allocated when written, so a replay that does not fit kills a trial late.
"""

from __future__ import annotations

import math
import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING

import psutil

from replicator.placement import cgroups
from workloads.d4pg.replay.streams import StreamsSpec

if TYPE_CHECKING:
    from workloads.d4pg.config import D4PGConfig
    from workloads.d4pg.environment.control import EnvironmentSpec

_GB = 1_000_000_000
_SUM_BYTES, _OWNER_BYTES = 8, 8
# Of a control group: its limit, its usage, and the line of memory.stat that says how
# much of the usage can be dropped.
_FILES_V2 = ("memory.max", "memory.current", "inactive_file")
_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def streams_spec(
    config: D4PGConfig,
    environment: EnvironmentSpec,
    *,
    num_actors: int,
    capacity: int,
) -> StreamsSpec:
    """Returns the rings for ``capacity`` environment steps of some actors."""
    num_streams = num_actors * config.environments_per_actor
    return StreamsSpec(
        num_streams=num_streams,
        steps_per_stream=math.ceil(capacity / num_streams),
        observation_shape=environment.observation_shape,
        observation_dtype=environment.observation_dtype,
        action_size=environment.action_size,
        num_actors=num_actors,
    )


def replay_bytes(spec: StreamsSpec, *, is_prioritized: bool) -> int:
    """Returns the bytes of a full replay.

    Its records; if prioritized, also a tree of sums over twice the next power of two,
    and the number of each leaf's record.
    """
    found = spec.memory_bytes
    if is_prioritized:
        num_records = spec.num_streams * spec.steps_per_stream
        num_leaves = 1 << max(num_records - 1, 1).bit_length()
        found += 2 * num_leaves * _SUM_BYTES + num_records * _OWNER_BYTES
    return found


def available_bytes(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the memory that is still available, as the kernel estimates it."""
    if not hasattr(os, "memfd_create"):  # then the rings are in a file
        return shutil.disk_usage(tempfile.gettempdir()).free
    files = {1: _FILES_V1, 2: _FILES_V2}
    groups = cgroups.folders("memory", root)
    lefts = [_left_in_group(folder, files[version]) for folder, version in groups]
    left = [found for found in lefts if found is not None]
    return min([int(psutil.virtual_memory().available), *left])


def _left_in_group(folder: pathlib.Path, files: tuple[str, str, str]) -> int | None:
    """Returns the memory left in a control group, or None if it has no limit."""
    limit, usage, droppable = files
    try:
        most = (folder / limit).read_text(encoding="ascii").strip()
        used = int((folder / usage).read_text(encoding="ascii"))
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    if most == "max":
        return None
    dropped = dict(line.split() for line in lines).get(droppable, "0")
    return max(int(most) - used + int(dropped), 0)


def check(config: D4PGConfig, spec: StreamsSpec, available: int | None = None) -> None:
    """Raises unless a full replay fits into this machine's memory."""
    needed = replay_bytes(spec, is_prioritized=config.replay == "prioritized")
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


def _in_words(num_bytes: int) -> str:
    unit, size = ("GB", _GB) if num_bytes >= _GB else ("MB", _GB / 1000)
    return f"{num_bytes / size:.3g} {unit}"
