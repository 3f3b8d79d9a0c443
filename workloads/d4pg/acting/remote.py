"""Actors on other machines, with Ray: the same loop, whose records are sent here.

Ray starts the actors wherever its cluster has a core. Each runs some rounds of the loop
on its own streams, and sends the records as one chunk; a thread here appends it to the
streams that the learner samples from. Needs the optional Ray
(``pip install 'replicator-harness[distributed]'``), and this package on every machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from typing import Any

import numpy as np

from workloads.d4pg.acting.actor import ActorError, BasePool
from workloads.d4pg.acting.settings import ActorSettings, check_ray
from workloads.d4pg.replay.streams import NO_WEIGHTS, StepStreams, StreamsSpec
from workloads.d4pg.replay.transitions import SharedArrays

# A sequence lock: the counter is odd while weights are being written; a reader that saw
# it change has read inconsistent weights and reads again. The learner never waits for
# an actor.

_MOST_ATTEMPTS = 100
_NOTHING = -1


class SharedWeights:
    """One flat vector of weights and its version.

    Attributes:
      num_floats: Length of the vector.
    """

    def __init__(self, num_floats: int, descriptor: int | None = None) -> None:
        self.num_floats = num_floats
        self._shared = SharedArrays(
            (
                ("sequence", (1,), "int64"),
                ("version", (1,), "int64"),
                ("weights", (num_floats,), "float32"),
            ),
            descriptor,
        )
        self._sequence = self._shared["sequence"]
        self._version = self._shared["version"]
        self._weights = self._shared["weights"]
        if descriptor is None:
            self._version[0] = _NOTHING

    @property
    def descriptor(self) -> int:
        """File descriptor of the memory; a child that inherits it can attach."""
        return self._shared.descriptor

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Publishes new weights to readers; only one process may call it."""
        if weights.shape != self._weights.shape:
            raise ValueError(
                f"weights of shape {weights.shape} cannot be published: a vector "
                f"of length {self.num_floats} is expected"
            )
        self._sequence[0] += 1
        self._weights[:] = weights
        self._version[0] = version
        self._sequence[0] += 1

    def read(self, *, newer_than: int = _NOTHING) -> tuple[np.ndarray, int] | None:
        """Returns a copy of the weights and their version, or None."""
        for _ in range(_MOST_ATTEMPTS):
            before = int(self._sequence[0])
            version = int(self._version[0])
            if version <= newer_than:
                return None
            if before % 2 == 0:
                weights = self._weights.copy()
                if int(self._sequence[0]) == before:
                    return weights, version
        return None

    def close(self) -> None:
        """Releases the memory, once no array of it is in use."""
        self._shared.close()


_POLL_SEC = 0.02
FIELDS = ("observation", "action", "reward", "discount", "is_first", "is_last")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The records of an actor in some rounds; lists have one entry per environment."""

    records: list[dict[str, np.ndarray]]  # Arrays by the names in ``FIELDS``.
    num_episodes: list[int]  # Episodes that ended.
    num_refused: list[int]  # Environment steps that were not finite.
    elapsed_sec: float  # Duration.
    version: int  # Version of the weights in use.


class Collector:
    """The remote side: runs rounds of the loop and returns their records.

    The constructor cannot fail, so that errors are raised unchanged by ``collect``.
    """

    def __init__(
        self, settings: str, streams: str, num_floats: int, actor_id: int, start: int
    ) -> None:
        self._settings = ActorSettings.from_json(settings)
        self._spec = StreamsSpec.from_json(streams)
        self._num_floats = num_floats
        self._actor_id = actor_id
        self._start = start
        self._actor: Any = None
        self._counts: dict[str, np.ndarray] = {}

    def collect(
        self, num_rounds: int, weights: np.ndarray | None, version: int
    ) -> Chunk:
        """Steps every environment ``num_rounds`` times."""
        if self._actor is None:
            self._make(num_rounds)
        if weights is not None:
            self._weights.publish(weights, version)
        begin = time.monotonic()
        for _ in range(num_rounds):
            self._actor.step()
        per_actor = self._settings.environments_per_actor
        own = slice(self._actor_id * per_actor, (self._actor_id + 1) * per_actor)
        streams = self._streams
        new = {
            name: getattr(streams, name)[own] - self._counts[name]
            for name in ("num_episodes", "num_refused")
        }
        records = [
            self._records(stream, int(self._counts["num_written"][place]))
            for place, stream in enumerate(range(own.start, own.stop))
        ]
        self._remember(own)
        return Chunk(
            records=records,
            num_episodes=new["num_episodes"].tolist(),
            num_refused=new["num_refused"].tolist(),
            elapsed_sec=time.monotonic() - begin,
            version=int(streams.version[self._actor_id]),
        )

    def _make(self, num_rounds: int) -> None:
        # As in the pool of processes: Mesa draws in the calling thread.
        os.environ.setdefault("LP_NUM_THREADS", "0")
        from workloads.d4pg.acting.actor import Actor

        # A round writes two records at most: the second is a final observation.
        spec = dataclasses.replace(self._spec, steps_per_stream=2 * num_rounds)
        self._streams = StepStreams(spec)
        self._weights = SharedWeights(max(self._num_floats, 1))
        self._actor = Actor(
            self._settings,
            self._streams,
            self._weights if self._num_floats else None,
            actor_id=self._actor_id,
            num_restarts=self._start,
        )
        per_actor = self._settings.environments_per_actor
        first = self._actor_id * per_actor
        self._remember(slice(first, first + per_actor))

    def _remember(self, own: slice) -> None:
        for name in ("num_written", "num_episodes", "num_refused"):
            self._counts[name] = getattr(self._streams, name)[own].copy()

    def _records(self, stream: int, first: int) -> dict[str, np.ndarray]:
        size = self._streams.spec.steps_per_stream
        numbers = np.arange(first, int(self._streams.num_written[stream]))
        slots = stream * size + numbers % size
        return {name: self._streams.field(name)[slots] for name in FIELDS}


@dataclasses.dataclass(kw_only=True, slots=True)
class _Remote:
    handle: Any
    pending: Any = None
    since: float = 0.0
    has_answered: bool = False
    version: int = NO_WEIGHTS


class RayActorPool(BasePool):
    """Actors of a Ray cluster; see ``BasePool``."""

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
        *,
        address: str = "",
        rounds_per_chunk: int = 50,
    ) -> None:
        check_ray()
        super().__init__(settings, streams, weights)
        self._ray: Any = importlib.import_module("ray")
        self._latest: tuple[Any, int] = (None, NO_WEIGHTS)
        self._rounds_per_chunk = rounds_per_chunk
        self._remotes: list[_Remote] = []
        self._has_cluster = bool(self._ray.is_initialized())
        if not self._has_cluster:
            self._connect(address or os.environ.get("RAY_ADDRESS", ""))
        self._writers = [streams.writer(k) for k in range(settings.num_streams)]
        self._start_thread()

    def pause(self) -> None:
        """Raises: Ray has no way to stop an actor on another machine for a while."""
        raise RuntimeError(
            "option actors='ray': actors of a Ray cluster cannot be stopped between "
            "turns; use --order sequential, or actors='processes'"
        )

    def resume(self) -> None:
        """Does nothing, since they cannot be stopped."""

    def close(self) -> None:
        """Terminates the actors, and the cluster if this pool has started it."""
        super().close()
        if not self._has_cluster and self._ray.is_initialized():
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address:
            self._ray.init(address=address, **quiet)
        else:
            self._ray.init(
                num_cpus=self._settings.num_actors, include_dashboard=False, **quiet
            )

    def _serve(self) -> None:
        self._remotes = [self._make(k) for k in range(self._settings.num_actors)]
        while not self._is_closing.is_set() and self._error is None:
            for actor_id, remote in enumerate(self._remotes):
                if remote.pending is None:
                    self._ask(actor_id, remote)
            pending = [r.pending for r in self._remotes if r.pending is not None]
            if pending:
                self._ray.wait(pending, num_returns=1, timeout=_POLL_SEC)
            else:
                time.sleep(_POLL_SEC)
            for actor_id, remote in enumerate(self._remotes):
                if remote.pending is not None and self._error is None:
                    self._remotes[actor_id] = self._look_at(actor_id, remote)

    def _end_all(self) -> None:
        for remote in self._remotes:
            self._ray.kill(remote.handle)

    def _make(self, actor_id: int) -> _Remote:
        num_floats = self._weights.num_floats if self._weights is not None else 0
        kind = self._ray.remote(num_cpus=1)(Collector)
        handle = kind.remote(
            self._settings.to_json(),
            self._streams.spec.to_json(),
            num_floats,
            actor_id,
            self._num_restarts,
        )
        return _Remote(handle=handle)

    def _ask(self, actor_id: int, remote: _Remote) -> None:
        """Requests the next chunk, unless the learner must sample first."""
        if self._streams.must_wait():
            self._streams.idle_sec[actor_id] += _POLL_SEC
            self._streams.elapsed_sec[actor_id] += _POLL_SEC
            return
        if self._weights is not None:
            newer = self._weights.read(newer_than=self._latest[1])
            if newer is not None:
                # Stored once, however many actors receive it.
                self._latest = (self._ray.put(newer[0]), newer[1])
        weights, version = self._latest
        is_newer = version > remote.version
        remote.pending = remote.handle.collect.remote(
            self._rounds_per_chunk, weights if is_newer else None, version
        )
        remote.version = version
        remote.since = time.monotonic()

    def _look_at(self, actor_id: int, remote: _Remote) -> _Remote:
        """Appends a chunk that has arrived, or replaces an actor that has failed."""
        ready, _ = self._ray.wait([remote.pending], timeout=0)
        if not ready:
            settings = self._settings
            limit = settings.stuck_sec if remote.has_answered else settings.start_sec
            if time.monotonic() - remote.since > limit:
                return self._replace(
                    actor_id, remote, f"no chunk of records for {limit:g} s"
                )
            return remote
        try:
            chunk = self._ray.get(remote.pending)
        except ValueError as error:
            self._error = ValueError(str(getattr(error, "cause", error)))
            return remote
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            return self._replace(actor_id, remote, lines[-1])
        self._take_in(actor_id, chunk)
        remote.pending, remote.has_answered = None, True
        return remote

    def _take_in(self, actor_id: int, chunk: Chunk) -> None:
        streams = self._streams
        first = actor_id * self._settings.environments_per_actor
        for place, records in enumerate(chunk.records):
            stream = first + place
            for values in zip(*(records[name] for name in FIELDS), strict=True):
                self._writers[stream].append(
                    *values[:4], is_first=values[4], is_last=values[5]
                )
            streams.num_episodes[stream] += chunk.num_episodes[place]
            streams.num_refused[stream] += chunk.num_refused[place]
        streams.elapsed_sec[actor_id] += chunk.elapsed_sec
        streams.version[actor_id] = chunk.version
        streams.heartbeat[actor_id] = time.monotonic()

    def _replace(self, actor_id: int, remote: _Remote, why: str) -> _Remote:
        self._ray.kill(remote.handle)
        if self._num_restarts >= self._settings.max_restarts:
            self._error = ActorError(
                f"actor {actor_id} of the Ray cluster ended ({why}) after "
                f"{self._num_restarts} replacements of actors, the most allowed"
            )
            return remote
        self._num_restarts += 1
        self._streams.version[actor_id] = NO_WEIGHTS
        return self._make(actor_id)
