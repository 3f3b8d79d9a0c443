"""Streams of environment steps in shared memory, which actors write and replay reads.

Each environment writes into a separate ring buffer, and then increments the ring's
counter; the learner reads up to the counter. There is no queue, no copy and no lock. A
writer that is killed while it writes a record has not incremented the counter, so the
record does not exist.

A reader must compare the counter before and after it has copied
(``StepStreams.locate``): a record can be overwritten in the meantime. Stores become
visible in order on x86; elsewhere the margin before the write head ensures that.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .capacity import Share
    from .control import EnvironmentSpec

NO_WEIGHTS = -1
"""Version of an actor that acts at random because it has no weights yet."""

FIELDS = ("observation", "action", "reward", "discount", "is_first", "is_last")
"""Arrays of a record."""

_NO_LIMIT = np.iinfo(np.int64).max
_ALIGNMENT = 64  # of an array's first byte: a cache line
_MOST_ATTEMPTS = 100


class SharedArrays(contextlib.AbstractContextManager["SharedArrays"]):
    """Named arrays in one piece of shared memory, zero at first.

    The memory has no name: a child inherits its descriptor. Named shared memory is
    limited to 64 MB in containers, and outlives a killed process.
    """

    descriptor: int  # For children: pass it on with ``pass_fds``.
    _arguments: tuple[Any, ...]  # Of the constructor, before the descriptor.

    def __init__(
        self,
        layout: Sequence[tuple[str, tuple[int, ...], str]],
        descriptor: int | None = None,
    ) -> None:
        """Lays out arrays by name, shape and dtype, in a child those of its parent."""
        offsets, size = [], 0
        for _, shape, dtype in layout:
            offsets.append(size)
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.descriptor = _make_memory(size) if descriptor is None else descriptor
        memory = mmap.mmap(self.descriptor, size)
        self._arrays = {
            name: np.ndarray(shape, dtype, memory, offset)
            for (name, shape, dtype), offset in zip(layout, offsets, strict=True)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a child that inherits the descriptor, in which it is the same."""
        return type(self), (*self._arguments, self.descriptor)

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the array of that name; all processes see what is written to it."""
        return self._arrays[name]

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._arrays.clear()


def _make_memory(size: int) -> int:
    """Returns the descriptor of ``size`` bytes of zeros without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("d4pg-streams")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class StepStreams(SharedArrays):
    """The rings of all environments, and the counters that processes share.

    A record is an observation, the action taken, and the resulting reward and discount.
    An episode's final observation is a record without a meaningful action.
    """

    share: Share
    environment: EnvironmentSpec
    num_written: np.ndarray  # Records of each stream; int64 [num_streams].
    num_episodes: np.ndarray  # Episodes that ended, per stream; int64 [num_streams].
    # Environment steps of each stream that were not finite, or that physics could not
    # take; int64 [num_streams].
    num_refused: np.ndarray
    heartbeat: np.ndarray  # Monotonic time of the last one; float64 [num_actors].
    idle_sec: np.ndarray  # Time waited for the learner; float64 [num_actors].
    elapsed_sec: np.ndarray  # Time that each actor has run; float64 [num_actors].
    version: np.ndarray  # Version of the weights of each actor; int64 [num_actors].
    _limit: np.ndarray  # Records that may be written; int64 [1].

    def __init__(
        self,
        share: Share,
        environment: EnvironmentSpec,
        descriptor: int | None = None,
    ) -> None:
        self.share, self.environment = self._arguments = share, environment
        rings = (share.num_streams, share.steps_per_stream)
        streams, actors = (share.num_streams,), (share.num_actors,)
        counters = (
            ("num_written", streams, "int64"),
            ("num_episodes", streams, "int64"),
            ("num_refused", streams, "int64"),
            ("heartbeat", actors, "float64"),
            ("idle_sec", actors, "float64"),
            ("elapsed_sec", actors, "float64"),
            ("version", actors, "int64"),
            ("_limit", (1,), "int64"),
        )
        records = (
            ("reward", rings, "float32"),
            ("discount", rings, "float32"),
            ("is_first", rings, "bool"),
            ("is_last", rings, "bool"),
            ("action", (*rings, environment.action_size), "float32"),
            (
                "observation",
                rings + environment.observation_shape,
                environment.observation_dtype,
            ),
        )
        super().__init__(counters + records, descriptor)
        for name, _, _ in counters:
            setattr(self, name, self[name])
        if descriptor is None:
            self.set_limit(_NO_LIMIT)
            self.version[:] = NO_WEIGHTS

    def field(self, name: str) -> np.ndarray:
        """Returns all records' values of a field: [streams * steps_per_stream, ...]."""
        array = self[name]
        return array.reshape(-1, *array.shape[2:])

    def locate(self, index: Any, steps: Any = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns where ``field`` has records, and how many follow, with themselves.

        A record has the index number * num_streams + stream; ``steps`` are to a later
        one of its stream. It does not exist unless one or more follow, and a writer
        touches its place as soon as ``steps_per_stream`` do.
        """
        numbers, streams = np.divmod(index, self.share.num_streams)
        numbers, size = numbers + steps, self.share.steps_per_stream
        # A copy: all records of a stream are compared with one and the same counter.
        num_following = self.num_written.copy()[streams] - numbers
        return streams * size + numbers % size, num_following

    def writer(self, stream_id: int) -> Callable[..., None]:
        """Returns a function that appends a record, in the order of ``FIELDS``."""
        observations, actions, rewards, discounts, firsts, lasts = (
            self[name][stream_id] for name in FIELDS
        )
        counter, size = self.num_written, self.share.steps_per_stream
        # A replacement continues where the previous process stopped.
        number = int(counter[stream_id])

        def append(
            observation: Any,
            action: Any,
            reward: float,
            discount: float,
            is_first: bool,
            is_last: bool,
        ) -> None:
            nonlocal number
            slot = number % size
            observations[slot], actions[slot] = observation, action
            rewards[slot], discounts[slot] = reward, discount
            firsts[slot], lasts[slot] = is_first, is_last
            number += 1
            counter[stream_id] = number

        return append

    def num_inserted(self) -> int:
        return int(self.num_written.sum())

    def set_limit(self, num_records: float) -> None:
        """Makes actors wait when they have written this many records in total."""
        self._limit[0] = int(min(num_records, _NO_LIMIT))

    def must_wait(self) -> bool:
        """Whether the learner must sample before more is written."""
        return int(self.num_written.sum()) >= int(self._limit[0])

    def describe_actors(self) -> str:
        per_actor = self.share.num_streams // self.share.num_actors
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


class SharedWeights(SharedArrays):
    """Weights by name, float32, and their version, which actors read.

    A sequence lock: the counter is odd while weights are being written; a reader that
    saw it change has read inconsistent weights and reads again. The learner never waits
    for an actor.
    """

    shapes: Mapping[str, tuple[int, ...]]  # Of the weights.

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], descriptor: int | None = None
    ) -> None:
        self.shapes, self._arguments = shapes, (shapes,)
        head = (("sequence", (1,), "int64"), ("version", (1,), "int64"))
        layout = [(name, shape, "float32") for name, shape in shapes.items()]
        super().__init__((*head, *layout), descriptor)
        self._sequence, self._version = self["sequence"], self["version"]
        if descriptor is None:
            self._version[0] = NO_WEIGHTS

    def publish(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != self.shapes:
            raise ValueError(
                f"weights of shapes {shapes} cannot be published: {self.shapes} are "
                "expected"
            )
        self._sequence[0] += 1
        for name, value in weights.items():
            self[name][...] = value
        self._version[0] = version
        self._sequence[0] += 1

    def read(
        self, *, newer_than: int = NO_WEIGHTS
    ) -> tuple[dict[str, np.ndarray], int] | None:
        """Returns a copy of the weights and their version, or None."""
        for _ in range(_MOST_ATTEMPTS):
            before = int(self._sequence[0])
            version = int(self._version[0])
            if version <= newer_than:
                return None
            if before % 2 == 0:
                weights = {name: self[name].copy() for name in self.shapes}
                if int(self._sequence[0]) == before:
                    return weights, version
        return None
