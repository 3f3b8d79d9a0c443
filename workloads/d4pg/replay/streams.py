"""Streams of environment steps in shared memory, which actors write and replay reads.

Each environment writes into a separate ring buffer, and then increments the ring's
counter; the learner reads up to the counter. There is no queue, no copy and no lock. A
writer that is killed while it writes a record has not incremented the counter, so the
record does not exist.

A reader must compare the counter before and after it has copied
(``StepStreams.is_intact``): a record can be overwritten in the meantime. Stores become
visible in order on x86; elsewhere the margin before the write head ensures that.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from replicator.core import cgroups
from workloads.d4pg.replay import transitions
from workloads.d4pg.replay.transitions import SharedArrays

if TYPE_CHECKING:
    from typing_extensions import Self

    from workloads.d4pg.config import D4PGConfig
    from workloads.d4pg.environment.control import EnvironmentSpec


_NO_LIMIT = np.iinfo(np.int64).max
NO_WEIGHTS = -1
"""Version of an actor that acts at random because it has no weights yet."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamsSpec:
    """Shapes of the streams."""

    num_streams: int  # Rings, one per environment.
    steps_per_stream: int  # Records that one ring holds.
    observation_shape: tuple[int, ...]  # Shape of one record: a state or one frame.
    observation_dtype: str  # ``float32`` or ``uint8``.
    action_size: int  # Length of an action.
    num_actors: int = 1  # Processes that write.

    @property
    def record_bytes(self) -> int:
        """Bytes of one record: observation, action, reward, discount and two flags."""
        observation = math.prod(self.observation_shape)
        size = observation * np.dtype(self.observation_dtype).itemsize
        return size + 4 * self.action_size + 4 + 4 + 2

    @property
    def memory_bytes(self) -> int:
        """Bytes of all records, once the rings are full."""
        return self.num_streams * self.steps_per_stream * self.record_bytes

    @property
    def margin(self) -> int:
        """Records before the write head that are never sampled."""
        return transitions.margin(self.steps_per_stream)

    def to_json(self) -> str:
        """Returns JSON that ``from_json`` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamsSpec:
        """Returns the spec from JSON."""
        fields: dict[str, Any] = json.loads(text)
        fields["observation_shape"] = tuple(fields["observation_shape"])
        return cls(**fields)


class StepStreams:
    """The rings of all environments, and the counters that processes share.

    A record is an observation, the action that was taken, and the resulting reward and
    discount. The final observation of an episode is a separate record without a
    meaningful action. Records are numbered from 0 within a stream.

    Attributes:
      spec: Shapes.
      num_written: Total records of each stream; int64 [num_streams].
      num_episodes: Episodes that ended, per stream; int64 [num_streams].
      num_refused: Environment steps of each stream that were not finite, or that
        physics could not take; int64 [num_streams].
      heartbeat: Monotonic time of each actor's last heartbeat; float64 [num_actors].
      idle_sec: Time that each actor has waited for the learner; float64 [num_actors].
      elapsed_sec: Time that each actor has run; float64 [num_actors].
      version: Version of the weights of each actor; int64 [num_actors].
    """

    def __init__(self, spec: StreamsSpec, descriptor: int | None = None) -> None:
        self.spec = spec
        rings = (spec.num_streams, spec.steps_per_stream)
        streams, actors = (spec.num_streams,), (spec.num_actors,)
        self._shared = SharedArrays(
            (
                ("num_written", streams, "int64"),
                ("num_episodes", streams, "int64"),
                ("num_refused", streams, "int64"),
                ("heartbeat", actors, "float64"),
                ("idle_sec", actors, "float64"),
                ("elapsed_sec", actors, "float64"),
                ("version", actors, "int64"),
                ("limit", (1,), "int64"),
                ("reward", rings, "float32"),
                ("discount", rings, "float32"),
                ("is_first", rings, "bool"),
                ("is_last", rings, "bool"),
                ("action", (*rings, spec.action_size), "float32"),
                (
                    "observation",
                    (*rings, *spec.observation_shape),
                    spec.observation_dtype,
                ),
            ),
            descriptor,
        )
        self.num_written = self._shared["num_written"]
        self.num_episodes = self._shared["num_episodes"]
        self.num_refused = self._shared["num_refused"]
        self.heartbeat = self._shared["heartbeat"]
        self.idle_sec = self._shared["idle_sec"]
        self.elapsed_sec = self._shared["elapsed_sec"]
        self.version = self._shared["version"]
        self._limit = self._shared["limit"]
        if descriptor is None:
            self._limit[0] = _NO_LIMIT
            self.version[:] = NO_WEIGHTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def descriptor(self) -> int:
        """File descriptor of the memory; a child that inherits it can attach."""
        return self._shared.descriptor

    @property
    def memory_bytes(self) -> int:
        """Bytes of all records, once the rings are full."""
        return self.spec.memory_bytes

    def field(self, name: str) -> np.ndarray:
        """Returns all records' values of a field: [streams * steps_per_stream, ...]."""
        array = self._shared[name]
        return array.reshape(-1, *array.shape[2:])

    def writer(self, stream_id: int) -> StreamWriter:
        """Returns a writer of a stream; a stream must have at most one."""
        names = ("observation", "action", "reward", "discount", "is_first", "is_last")
        return StreamWriter(
            {name: self._shared[name][stream_id] for name in names},
            self.num_written[stream_id : stream_id + 1],
        )

    def num_inserted(self) -> int:
        """Returns the total number of records written."""
        return int(self.num_written.sum())

    def set_limit(self, num_records: float) -> None:
        """Makes actors wait when they have written this many records in total."""
        self._limit[0] = int(min(num_records, _NO_LIMIT))

    def must_wait(self) -> bool:
        """Whether the learner must sample before more is written."""
        return int(self.num_written.sum()) >= int(self._limit[0])

    def is_intact(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns which records have certainly not been overwritten yet."""
        # A writer touches the slot of record j as soon as it is at record j + size.
        intact: np.ndarray = (
            self.num_written[streams] < numbers + self.spec.steps_per_stream
        )
        return intact

    def describe_actors(self) -> str:
        """Describes the state of each actor in one line."""
        per_actor = self.spec.num_streams // self.spec.num_actors
        written = self.num_written.reshape(-1, per_actor).sum(axis=1)
        refused = self.num_refused.reshape(-1, per_actor).sum(axis=1)
        now = time.monotonic()
        parts = []
        for actor, heartbeat in enumerate(self.heartbeat.tolist()):
            sign = f"last heartbeat {now - heartbeat:.0f} s ago"
            parts.append(
                f"actor {actor}: {written[actor]} environment steps, "
                f"{refused[actor]} refused, {sign if heartbeat else 'no heartbeat'}"
            )
        return "; ".join(parts)

    def close(self) -> None:
        """Releases the memory, once no array of it is in use."""
        self._shared.close()


class StreamWriter:
    """Appends records to one stream; made by ``StepStreams.writer``."""

    def __init__(self, ring: dict[str, np.ndarray], num_written: np.ndarray) -> None:
        self._observation = ring["observation"]
        self._action = ring["action"]
        self._reward = ring["reward"]
        self._discount = ring["discount"]
        self._is_first = ring["is_first"]
        self._is_last = ring["is_last"]
        self._counter = num_written
        # A replacement continues where the previous process stopped.
        self._next = int(num_written[0])

    def append(
        self,
        observation: np.ndarray,
        action: np.ndarray | float,
        reward: float,
        discount: float,
        *,
        is_first: bool,
        is_last: bool,
    ) -> None:
        """Writes one record and publishes it."""
        slot = self._next % len(self._reward)
        self._observation[slot] = observation
        self._action[slot] = action
        self._reward[slot] = reward
        self._discount[slot] = discount
        self._is_first[slot] = is_first
        self._is_last[slot] = is_last
        self._next += 1
        self._counter[0] = self._next


# The rings are anonymous shared memory (``shared_memory``): they are limited by the
# memory of the machine and of a container, not by the size of ``/dev/shm``. Their pages
# are allocated when written, so a replay that does not fit kills a trial late.

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
