"""Actors, here or on a Ray cluster: started, watched, and replaced where they fail.

    python -m workloads.d4pg.pool < MESSAGE

is the process of one actor. It exits with its parent, even if the parent was killed.
There are two mechanisms, because each has a gap: the kernel's parent-death signal (lost
if the parent died before the request), and end-of-file on standard input, whose other
end only the parent has open (works only once this process runs).
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import dataclasses
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from workloads import ONE_THREAD, child_environment

from .streams import FIELDS, NO_WEIGHTS, SharedWeights, StepStreams

if TYPE_CHECKING:
    from .actor import ActorSettings
    from .capacity import Share
    from .control import EnvironmentSpec


class ActorError(RuntimeError):
    """Actors fail repeatedly; the message says how the last one did."""


class BasePool(contextlib.AbstractContextManager[Any]):
    """The actors of one replay, each kept by a thread, whose error ``check`` raises."""

    where = ""  # in messages

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        """Starts the threads: the last statement of a constructor."""
        self._settings = settings
        self._streams = streams
        self._weights = weights
        self._num_restarts = 0
        self._paused_sec = 0.0  # of all actors
        self._error: Exception | None = None
        self._is_closing = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._keep, args=[k], name="actor", daemon=True)
            for k in range(streams.share.num_actors)
        ]
        atexit.register(self.close)
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises if actors cannot start, or failed more often than allowed."""
        if self._error is not None:
            raise self._error

    def counters(self) -> dict[str, float]:
        """Returns what all actors have done so far, and how long they waited."""
        streams = self._streams
        num_episodes = int(streams.num_episodes.sum())
        return {
            # A final observation is a record, but no action was taken there.
            "num_environment_steps": streams.num_inserted() - num_episodes,
            "num_episodes": num_episodes,
            "idle_sec": float(streams.idle_sec.sum()),
            "elapsed_sec": max(streams.elapsed_sec.sum() - self._paused_sec, 0.0),
            "num_refused": int(streams.num_refused.sum()),
            "num_restarts": self._num_restarts,
        }

    def close(self) -> None:
        atexit.unregister(self.close)
        self._is_closing.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, actor_id: int) -> None:
        """Runs an actor, and those that replace it, until the pool closes."""
        try:
            while failure := self._run(actor_id):
                self._count_restart(f"actor {actor_id}{self.where}", *failure)
        except Exception as error:  # noqa: BLE001 - raised by check()
            self._error = self._error or error
            self._is_closing.set()  # nobody needs the others

    def _count_restart(self, actor: str, why: str, advice: str) -> None:
        with self._lock:
            if self._num_restarts >= self._settings.max_restarts:
                raise ActorError(
                    f"{actor} ended ({why}) after {self._num_restarts} replacements "
                    f"of actors, the most allowed{advice}"
                )
            self._num_restarts += 1

    @abc.abstractmethod
    def _run(self, actor_id: int) -> tuple[str, str] | None:
        """Runs an actor until the pool closes, or says why it failed, and advice."""


_POLL_SEC = 0.1
_LOG_BYTES = 4096
# Exit code if a restart would fail in the same way; the last line says why.
_BAD_INPUT = 2


class ActorPool(BasePool):
    """Actors in separate processes of one thread, on the cores of this one.

    They start with the pool, write into ``streams`` and act by ``weights``, at random
    without them. ``check`` raises an ``ActorError`` where they fail too often.
    """

    def __init__(self, *args: Any) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_running = threading.Event()
        self._is_running.set()
        self._paused_at = 0.0
        super().__init__(*args)

    def process_ids(self) -> list[int]:
        return [process.pid for _, process in sorted(self._processes.items())]

    def pause(self) -> None:
        """Stops the actors until ``resume``; harmless if they are stopped."""
        with self._lock:
            if self._is_running.is_set():
                self._paused_at = time.monotonic()
                self._is_running.clear()
                self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets stopped actors continue; the time in between is not theirs."""
        with self._lock:
            if not self._is_running.is_set():
                gap = time.monotonic() - self._paused_at
                self._paused_sec += gap * len(self._processes)
                self._signal(signal.SIGCONT)
                self._is_running.set()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def close(self) -> None:
        """Terminates the actors, stopped ones too."""
        self._is_closing.set()
        self._is_running.set()
        super().close()

    def _run(self, actor_id: int) -> tuple[str, str] | None:
        # The parent-death signal is sent when the *thread* that started a child exits:
        # this one waits until its actor has ended.
        with tempfile.TemporaryFile() as log:
            with self._lock:
                process = self._processes[actor_id] = self._start(actor_id, log)
                if not self._is_running.is_set():
                    process.send_signal(signal.SIGSTOP)
            try:
                why = self._watch(actor_id, process)
            finally:
                process.kill()
                process.communicate()
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_BYTES, 0))
            lines = log.read().decode(errors="replace").strip().splitlines()
        line = lines[-1] if lines else "(empty)"
        if why and process.returncode == _BAD_INPUT:
            raise ValueError(line)
        return (why, f": fix what its last message says: {line}") if why else None

    def _start(self, actor_id: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        self._streams.heartbeat[actor_id] = 0
        ids = {"actor_id": actor_id, "num_restarts": self._num_restarts}
        message = (self._settings, self._streams, self._weights, ids)
        shared = (self._streams, self._weights)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[each.descriptor for each in shared if each is not None],
            env=child_environment(ONE_THREAD),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit is noticed like any other
            process.stdin.write(pickle.dumps(message))
        return process

    def _watch(self, actor_id: int, process: subprocess.Popen[bytes]) -> str:
        """Returns why an actor has failed; nothing when the pool closes."""
        settings = self._settings
        last_look = start = time.monotonic()
        grace = 0.0
        while not self._is_closing.wait(_POLL_SEC):
            self._is_running.wait()  # without polling
            now = time.monotonic()
            # If this process itself was suspended, the actor may have been, too.
            if now - last_look > settings.stuck_sec / 2:
                grace = now
            last_look = now
            heartbeat = float(self._streams.heartbeat[actor_id])
            limit = settings.stuck_sec if heartbeat else settings.start_sec
            code = process.poll()
            if code is not None and code < 0:
                return f"killed by {signal.Signals(-code).name}"
            if code is not None:
                return f"exit code {code}"
            if now - max(heartbeat or start, grace) > limit:
                return f"no heartbeat for {limit:g} s"
        return ""


# Actors of a Ray cluster run wherever it has a core, some rounds at a time, on streams
# of their own; their records are appended here. Every machine needs this package.

_ASK_SEC, _WAIT_SEC = 0.02, 0.5
_ROUNDS_PER_CHUNK = 50
_COUNTED = ("num_episodes", "num_refused")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The records of an actor in some rounds; lists have one entry per environment."""

    records: list[list[np.ndarray]]  # Arrays in the order of ``FIELDS``.
    counted: list[np.ndarray]  # Changes of ``_COUNTED``.
    elapsed_sec: float  # Duration.
    version: int  # Version of the weights in use.


class Collector:
    """The remote side: runs rounds of the loop and returns their records."""

    def __init__(
        self,
        settings: ActorSettings,
        share: Share,
        environment: EnvironmentSpec,
        shapes: Mapping[str, tuple[int, ...]] | None,
        ids: dict[str, int],
    ) -> None:
        self._settings, self._ids = settings, ids
        # A round writes two records at most: the second is a final observation.
        share = dataclasses.replace(share, steps_per_stream=2 * _ROUNDS_PER_CHUNK)
        self._streams = StepStreams(share, environment)
        # Without weights, it acts at random.
        self._weights = None if shapes is None else SharedWeights(shapes)
        self._actor: Any = None

    def collect(self, weights: Mapping[str, np.ndarray] | None, version: int) -> Chunk:
        if self._actor is None:
            # As in the pool of processes: Mesa draws in the calling thread.
            os.environ.setdefault("LP_NUM_THREADS", "0")
            from .actor import Actor

            self._actor = Actor(
                self._settings, self._streams, self._weights, **self._ids
            )
        if self._weights is not None and weights is not None:
            self._weights.publish(weights, version)
        streams, actor_id = self._streams, self._ids["actor_id"]
        own = streams.share.streams_of(actor_id)
        begin, written = time.monotonic(), streams.num_written.copy()
        for name in _COUNTED:
            streams[name][:] = 0
        for _ in range(_ROUNDS_PER_CHUNK):
            self._actor.step()
        records = []
        for stream in own:
            numbers = np.arange(written[stream], streams.num_written[stream])
            slots, _ = streams.locate(stream, numbers)
            records.append([streams.field(name)[slots] for name in FIELDS])
        return Chunk(
            records=records,
            counted=[streams[name][own].copy() for name in _COUNTED],
            elapsed_sec=time.monotonic() - begin,
            version=int(streams.version[actor_id]),
        )


class RayActorPool(BasePool):
    """The same on a Ray cluster, that of ``RAY_ADDRESS`` or one of this machine."""

    where = " of the Ray cluster"

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._latest: tuple[Any, int] = (None, NO_WEIGHTS)
        self._has_cluster = bool(self._ray.is_initialized())
        if not self._has_cluster:
            address = os.environ.get("RAY_ADDRESS", "")
            new = {"num_cpus": streams.share.num_actors, "include_dashboard": False}
            self._ray.init(
                # Without an address it would be any cluster of this machine.
                address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if address else new),
            )
        self._writers = [streams.writer(k) for k in range(streams.share.num_streams)]
        super().__init__(settings, streams, weights)

    def pause(self) -> None:
        raise RuntimeError(
            "option actors='ray': actors of a Ray cluster cannot be stopped between "
            "turns; use --order sequential, or actors='processes'"
        )

    def resume(self) -> None:
        """Does nothing, since they cannot be stopped."""

    def close(self) -> None:
        super().close()
        if not self._has_cluster and self._ray.is_initialized():
            self._ray.shutdown()

    def _run(self, actor_id: int) -> tuple[str, str] | None:
        streams, limit = self._streams, self._settings.start_sec
        shapes = self._weights and self._weights.shapes
        ids = {"actor_id": actor_id, "num_restarts": self._num_restarts}
        sent = streams.version[actor_id] = NO_WEIGHTS
        handle = self._ray.remote(num_cpus=1)(Collector).remote(
            self._settings, streams.share, streams.environment, shapes, ids
        )
        try:
            while not self._is_closing.is_set():
                if streams.must_wait():
                    streams.idle_sec[actor_id] += _ASK_SEC
                    streams.elapsed_sec[actor_id] += _ASK_SEC
                    time.sleep(_ASK_SEC)
                    continue
                weights, version = self._newest_weights()
                is_newer = version > sent
                answer = handle.collect.remote(weights if is_newer else None, version)
                sent, since = version, time.monotonic()
                while not self._ray.wait([answer], timeout=_WAIT_SEC)[0]:
                    if self._is_closing.is_set():
                        return None
                    if time.monotonic() - since > limit:
                        return f"no chunk of records for {limit:g} s", ""
                self._take_in(actor_id, self._ray.get(answer))
                limit = self._settings.stuck_sec
        except ValueError as error:
            raise ValueError(str(getattr(error, "cause", error))) from error
        except self._ray.exceptions.RayError as error:
            return str(error).strip().splitlines()[-1], ""
        finally:
            self._ray.kill(handle)
        return None

    def _newest_weights(self) -> tuple[Any, int]:
        """Returns weights and their version, stored once for all actors."""
        with self._lock:
            if self._weights is not None:
                newer = self._weights.read(newer_than=self._latest[1])
                if newer is not None:
                    self._latest = (self._ray.put(newer[0]), newer[1])
            return self._latest

    def _take_in(self, actor_id: int, chunk: Chunk) -> None:
        streams, own = self._streams, self._streams.share.streams_of(actor_id)
        for stream, records in zip(own, chunk.records, strict=True):
            for record in zip(*records, strict=True):
                self._writers[stream](*record)
        for name, counted in zip(_COUNTED, chunk.counted, strict=True):
            streams[name][own] += counted
        streams.elapsed_sec[actor_id] += chunk.elapsed_sec
        streams.version[actor_id] = chunk.version
        streams.heartbeat[actor_id] = time.monotonic()


def main() -> int:
    """Runs an actor until the parent terminates it."""
    from replicator.cluster.die_with_parent import request_death_signal

    request_death_signal()
    settings, streams, weights, ids = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()
    from .actor import Actor

    os.nice(settings.config.actor_niceness)
    try:
        actor = Actor(settings, streams, weights, **ids)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return _BAD_INPUT
    actor.run()
    return 0


def _watch_parent() -> None:
    # The parent writes nothing more: any return is end-of-file.
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
