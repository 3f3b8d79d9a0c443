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
from typing import TYPE_CHECKING, Any

import numpy as np

from .pool import BasePool
from .streams import FIELDS, NO_WEIGHTS, SharedWeights, StepStreams, StreamsSpec

if TYPE_CHECKING:
    from .actor import ActorSettings

_POLL_SEC = 0.02
_ROUNDS_PER_CHUNK = 50


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The records of an actor in some rounds; lists have one entry per environment."""

    records: list[list[np.ndarray]]  # Arrays in the order of ``FIELDS``.
    num_episodes: np.ndarray  # Episodes that ended.
    num_refused: np.ndarray  # Environment steps that were not finite.
    elapsed_sec: float  # Duration.
    version: int  # Version of the weights in use.


class Collector:
    """The remote side: runs rounds of the loop and returns their records.

    The constructor cannot fail, so that errors are raised unchanged by ``collect``.
    """

    def __init__(
        self,
        settings: ActorSettings,
        spec: StreamsSpec,
        num_floats: int,
        actor_id: int,
        num_restarts: int,
    ) -> None:
        self._settings, self._num_floats = settings, num_floats
        # A round writes two records at most: the second is a final observation.
        self._spec = dataclasses.replace(spec, steps_per_stream=2 * _ROUNDS_PER_CHUNK)
        self._ids = {"actor_id": actor_id, "num_restarts": num_restarts}
        count = settings.config.environments_per_actor
        self._own = slice(actor_id * count, (actor_id + 1) * count)
        self._actor: Any = None

    def collect(self, weights: np.ndarray | None, version: int) -> Chunk:
        """Steps every environment ``_ROUNDS_PER_CHUNK`` times."""
        if self._actor is None:
            # As in the pool of processes: Mesa draws in the calling thread.
            os.environ.setdefault("LP_NUM_THREADS", "0")
            from .actor import Actor

            self._streams = StepStreams(self._spec)
            self._weights = SharedWeights(max(self._num_floats, 1))
            shared = self._weights if self._num_floats else None
            self._actor = Actor(self._settings, self._streams, shared, **self._ids)
            self._counts = self._count()
        if weights is not None:
            self._weights.publish(weights, version)
        begin = time.monotonic()
        for _ in range(_ROUNDS_PER_CHUNK):
            self._actor.step()
        before, now = self._counts, self._count()
        self._counts = now
        size = self._spec.steps_per_stream
        records = []
        for stream in range(self._own.start, self._own.stop):
            place = stream - self._own.start
            first, end = (int(of["num_written"][place]) for of in (before, now))
            slots = stream * size + np.arange(first, end) % size
            records.append([self._streams.field(name)[slots] for name in FIELDS])
        return Chunk(
            records=records,
            num_episodes=now["num_episodes"] - before["num_episodes"],
            num_refused=now["num_refused"] - before["num_refused"],
            elapsed_sec=time.monotonic() - begin,
            version=int(self._streams.version[self._ids["actor_id"]]),
        )

    def _count(self) -> dict[str, np.ndarray]:
        names = ("num_written", "num_episodes", "num_refused")
        return {name: self._streams[name][self._own].copy() for name in names}


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
    ) -> None:
        super().__init__(settings, streams, weights)
        self._ray: Any = importlib.import_module("ray")
        self._latest: tuple[Any, int] = (None, NO_WEIGHTS)
        self._remotes: list[_Remote] = []
        self._has_cluster = bool(self._ray.is_initialized())
        if not self._has_cluster:
            address = os.environ.get("RAY_ADDRESS", "")
            new = {"num_cpus": settings.num_actors, "include_dashboard": False}
            self._ray.init(
                # Without an address it would be any cluster of this machine.
                address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if address else new),
            )
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
                    self._look_at(actor_id, remote)

    def _end_all(self) -> None:
        for remote in self._remotes:
            self._ray.kill(remote.handle)

    def _make(self, actor_id: int) -> _Remote:
        num_floats = self._weights.num_floats if self._weights is not None else 0
        handle = self._ray.remote(num_cpus=1)(Collector).remote(
            self._settings, self._streams.spec, num_floats, actor_id, self._num_restarts
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
            weights if is_newer else None, version
        )
        remote.version = version
        remote.since = time.monotonic()

    def _look_at(self, actor_id: int, remote: _Remote) -> None:
        """Appends a chunk that has arrived, or replaces an actor that has failed."""
        ready, _ = self._ray.wait([remote.pending], timeout=0)
        if not ready:
            settings = self._settings
            limit = settings.stuck_sec if remote.has_answered else settings.start_sec
            if time.monotonic() - remote.since > limit:
                self._replace(actor_id, f"no chunk of records for {limit:g} s")
            return
        try:
            chunk = self._ray.get(remote.pending)
        except ValueError as error:
            self._error = ValueError(str(getattr(error, "cause", error)))
        except self._ray.exceptions.RayError as error:
            self._replace(actor_id, str(error).strip().splitlines()[-1])
        else:
            self._take_in(actor_id, chunk)
            remote.pending, remote.has_answered = None, True

    def _take_in(self, actor_id: int, chunk: Chunk) -> None:
        streams = self._streams
        count = self._settings.config.environments_per_actor
        own = slice(actor_id * count, (actor_id + 1) * count)
        for writer, records in zip(self._writers[own], chunk.records, strict=True):
            for *values, is_first, is_last in zip(*records, strict=True):
                writer.append(*values, is_first=is_first, is_last=is_last)
        streams.num_episodes[own] += chunk.num_episodes
        streams.num_refused[own] += chunk.num_refused
        streams.elapsed_sec[actor_id] += chunk.elapsed_sec
        streams.version[actor_id] = chunk.version
        streams.heartbeat[actor_id] = time.monotonic()

    def _replace(self, actor_id: int, why: str) -> None:
        self._ray.kill(self._remotes[actor_id].handle)
        if self._count_restart(f"actor {actor_id} of the Ray cluster", why):
            self._streams.version[actor_id] = NO_WEIGHTS
            self._remotes[actor_id] = self._make(actor_id)
