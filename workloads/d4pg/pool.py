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
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from workloads import ONE_THREAD, child_environment

from .streams import FIELDS, NO_WEIGHTS, SharedWeights, StepStreams, StreamsSpec

if TYPE_CHECKING:
    from .actor import ActorSettings


class ActorError(RuntimeError):
    """Actors fail repeatedly; the message says how the last one did."""


class BasePool(contextlib.AbstractContextManager[Any]):
    """The actors of one replay, managed by a thread, whose errors ``check`` raises."""

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        """Starts the thread: the last statement of a constructor."""
        self._settings = settings
        self._streams = streams
        self._weights = weights
        self._num_restarts = 0
        self._error: Exception | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actors", daemon=True)
        atexit.register(self.close)
        self._thread.start()

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
            "elapsed_sec": float(streams.elapsed_sec.sum()),
            "num_refused": int(streams.num_refused.sum()),
            "num_restarts": self._num_restarts,
        }

    def close(self) -> None:
        atexit.unregister(self.close)
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for actor_id in range(self._settings.num_actors):
                self._start(actor_id)
            while not self._is_closing.is_set():
                self._watch()
        except Exception as error:  # noqa: BLE001 - raised by check()
            self._error = error
        finally:
            self._end_all()

    def _replace(self, actor_id: int, where: str, why: str, advice: str = "") -> None:
        """Starts an actor again, or raises after the last replacement."""
        if self._num_restarts >= self._settings.max_restarts:
            raise ActorError(
                f"actor {actor_id}{where} ended ({why}) after {self._num_restarts} "
                f"replacements of actors, the most allowed{advice}"
            )
        self._num_restarts += 1
        self._start(actor_id)

    @abc.abstractmethod
    def _start(self, actor_id: int) -> None:
        """Starts an actor, of which the one before has ended."""

    @abc.abstractmethod
    def _watch(self) -> None:
        """Waits a moment, and replaces actors that have failed."""

    @abc.abstractmethod
    def _end_all(self) -> None:
        """Terminates every started actor."""


_POLL_SEC = 0.1
_LOG_BYTES = 4096
# Exit code if a restart would fail in the same way; the last line says why.
_BAD_INPUT = 2


@dataclasses.dataclass(kw_only=True, slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    log: IO[bytes]
    start: float

    def end(self) -> str:
        """Kills the process if necessary; returns the last line of its log."""
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        with self.log as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_BYTES, 0))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(empty)"


class ActorPool(BasePool):
    """Actors in separate processes of one thread, on the cores of this one."""

    def __init__(self, *args: Any) -> None:
        self._processes: dict[int, _Process] = {}
        # Guards the processes against being replaced while they are stopped.
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._paused_at = self._paused_sec = 0.0
        self._last_watch, self._grace = time.monotonic(), 0.0
        # The parent-death signal is sent when the *thread* that started a child exits:
        # all are started by the one thread that lives as long as the pool.
        super().__init__(*args)

    def process_ids(self) -> list[int]:
        return [process.popen.pid for _, process in sorted(self._processes.items())]

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
            if process.popen.poll() is None:
                process.popen.send_signal(number)

    def counters(self) -> dict[str, float]:
        counts = super().counters()
        elapsed_sec = max(counts["elapsed_sec"] - self._paused_sec, 0.0)
        return {**counts, "elapsed_sec": elapsed_sec}

    def close(self) -> None:
        """Terminates the actors, stopped ones too."""
        self._is_closing.set()
        self._is_running.set()
        super().close()

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.end()

    def _watch(self) -> None:
        self._is_closing.wait(_POLL_SEC)
        self._is_running.wait()  # without polling
        now = time.monotonic()
        # If this process itself was suspended, the actors may have been, too.
        if now - self._last_watch > self._settings.stuck_sec / 2:
            self._grace = now
        self._last_watch = now
        with self._lock:
            if self._is_running.is_set() and not self._is_closing.is_set():
                for actor_id in range(self._settings.num_actors):
                    self._look_at(actor_id, now)

    def _look_at(self, actor_id: int, now: float) -> None:
        """Replaces an actor that has exited or hangs."""
        process = self._processes[actor_id]
        heartbeat = float(self._streams.heartbeat[actor_id])
        sign = max(heartbeat, process.start, self._grace)
        limit = self._settings.stuck_sec if heartbeat else self._settings.start_sec
        code = process.popen.poll()
        if code is None and now - sign <= limit:
            return
        if code is None:
            why = f"no heartbeat for {limit:g} s"
        elif code < 0:
            why = f"killed by {signal.Signals(-code).name}"
        else:
            why = f"exit code {code}"
        line = self._processes.pop(actor_id).end()
        if code == _BAD_INPUT:
            raise ValueError(line)
        self._replace(actor_id, "", why, f": fix what its last message says: {line}")

    def _start(self, actor_id: int) -> None:
        self._streams.heartbeat[actor_id] = 0
        descriptors, weights = [self._streams.descriptor], None
        if self._weights is not None:
            descriptors.append(self._weights.descriptor)
            weights = (self._weights.num_floats, self._weights.descriptor)
        ids = {"actor_id": actor_id, "num_restarts": self._num_restarts}
        message = (self._settings, self._streams.spec, descriptors[0], weights, ids)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end
        popen = subprocess.Popen(
            [sys.executable, "-m", __name__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            env=child_environment(ONE_THREAD),
        )
        start = time.monotonic()
        self._processes[actor_id] = _Process(popen=popen, log=log, start=start)
        assert popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit is noticed like any other
            popen.stdin.write(pickle.dumps(message))


# Actors of a Ray cluster run wherever it has a core, some rounds at a time, on streams
# of their own; their records are appended here. Every machine needs this package.

_ASK_SEC = 0.02
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
        spec: StreamsSpec,
        num_floats: int,
        ids: dict[str, int],
    ) -> None:
        self._settings, self._num_floats, self._ids = settings, num_floats, ids
        # A round writes two records at most: the second is a final observation.
        self._spec = dataclasses.replace(spec, steps_per_stream=2 * _ROUNDS_PER_CHUNK)
        self._actor: Any = None

    def collect(self, weights: np.ndarray | None, version: int) -> Chunk:
        if self._actor is None:
            # As in the pool of processes: Mesa draws in the calling thread.
            os.environ.setdefault("LP_NUM_THREADS", "0")
            from .actor import Actor

            self._streams = StepStreams(self._spec)
            self._weights = SharedWeights(max(self._num_floats, 1))
            shared = self._weights if self._num_floats else None
            self._actor = Actor(self._settings, self._streams, shared, **self._ids)
        if weights is not None:
            self._weights.publish(weights, version)
        streams, own = self._streams, self._settings.streams_of(self._ids["actor_id"])
        begin, written = time.monotonic(), streams.num_written.copy()
        for name in _COUNTED:
            streams[name][:] = 0
        for _ in range(_ROUNDS_PER_CHUNK):
            self._actor.step()
        records = []
        for stream in own:
            numbers = np.arange(written[stream], streams.num_written[stream])
            slots = streams.slots(np.full_like(numbers, stream), numbers)
            records.append([streams.field(name)[slots] for name in FIELDS])
        return Chunk(
            records=records,
            counted=[streams[name][own].copy() for name in _COUNTED],
            elapsed_sec=time.monotonic() - begin,
            version=int(streams.version[self._ids["actor_id"]]),
        )


@dataclasses.dataclass(kw_only=True, slots=True)
class _Remote:
    handle: Any
    pending: Any = None
    since: float = 0.0
    has_answered: bool = False
    version: int = NO_WEIGHTS


class RayActorPool(BasePool):
    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._latest: tuple[Any, int] = (None, NO_WEIGHTS)
        self._remotes: dict[int, _Remote] = {}
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

    def _end_all(self) -> None:
        for remote in self._remotes.values():
            self._ray.kill(remote.handle)

    def _start(self, actor_id: int) -> None:
        self._streams.version[actor_id] = NO_WEIGHTS
        num_floats = self._weights.num_floats if self._weights is not None else 0
        ids = {"actor_id": actor_id, "num_restarts": self._num_restarts}
        handle = self._ray.remote(num_cpus=1)(Collector).remote(
            self._settings, self._streams.spec, num_floats, ids
        )
        self._remotes[actor_id] = _Remote(handle=handle)

    def _watch(self) -> None:
        for actor_id, remote in self._remotes.items():
            if remote.pending is None:
                self._ask(actor_id, remote)
        pending = [r.pending for r in self._remotes.values() if r.pending is not None]
        if pending:
            self._ray.wait(pending, num_returns=1, timeout=_ASK_SEC)
        else:
            time.sleep(_ASK_SEC)
        for actor_id, remote in [*self._remotes.items()]:
            if remote.pending is not None:
                self._look_at(actor_id, remote)

    def _ask(self, actor_id: int, remote: _Remote) -> None:
        """Requests the next chunk, unless the learner must sample first."""
        if self._streams.must_wait():
            self._streams.idle_sec[actor_id] += _ASK_SEC
            self._streams.elapsed_sec[actor_id] += _ASK_SEC
            return
        if self._weights is not None:
            newer = self._weights.read(newer_than=self._latest[1])
            if newer is not None:
                # Stored once, however many actors receive it.
                self._latest = (self._ray.put(newer[0]), newer[1])
        weights, version = self._latest
        remote.pending = remote.handle.collect.remote(
            weights if version > remote.version else None, version
        )
        remote.version, remote.since = version, time.monotonic()

    def _look_at(self, actor_id: int, remote: _Remote) -> None:
        """Takes the records of an actor that has answered, or replaces it."""
        settings = self._settings
        ready, _ = self._ray.wait([remote.pending], timeout=0)
        try:
            if ready:
                self._take_in(actor_id, self._ray.get(remote.pending))
                remote.pending, remote.has_answered = None, True
                return
            limit = settings.stuck_sec if remote.has_answered else settings.start_sec
            if time.monotonic() - remote.since <= limit:
                return
            why = f"no chunk of records for {limit:g} s"
        except ValueError as error:
            raise ValueError(str(getattr(error, "cause", error))) from error
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1]
        self._ray.kill(remote.handle)
        self._replace(actor_id, " of the Ray cluster", why)

    def _take_in(self, actor_id: int, chunk: Chunk) -> None:
        streams, own = self._streams, self._settings.streams_of(actor_id)
        for stream, records in zip(own, chunk.records, strict=True):
            for *values, is_first, is_last in zip(*records, strict=True):
                self._writers[stream].append(
                    *values, is_first=is_first, is_last=is_last
                )
        for name, counted in zip(_COUNTED, chunk.counted, strict=True):
            streams[name][own] += counted
        streams.elapsed_sec[actor_id] += chunk.elapsed_sec
        streams.version[actor_id] = chunk.version
        streams.heartbeat[actor_id] = time.monotonic()


def main() -> int:
    """Runs an actor until the parent terminates it."""
    from replicator.cluster.die_with_parent import request_death_signal

    request_death_signal()
    settings, spec, memory, weights_memory, ids = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()
    from .actor import Actor

    os.nice(settings.config.actor_niceness)
    streams = StepStreams(spec, memory)
    weights = None if weights_memory is None else SharedWeights(*weights_memory)
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
