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
            self._serve()
        except Exception as error:  # noqa: BLE001 - raised by check()
            self._error = error
        finally:
            self._end_all()

    @abc.abstractmethod
    def _serve(self) -> None:
        """Starts actors and replaces them, until the pool closes or has an error."""

    @abc.abstractmethod
    def _end_all(self) -> None:
        """Terminates every started actor."""

    def _count_restart(self, actor: str, why: str, advice: str = "") -> bool:
        """Counts a replacement; returns False, with the error, after the last one."""
        if self._num_restarts >= self._settings.max_restarts:
            self._error = ActorError(
                f"{actor} ended ({why}) after {self._num_restarts} replacements of "
                f"actors, the most allowed{advice}"
            )
            return False
        self._num_restarts += 1
        return True


_POLL_SEC = 0.1
_LOG_BYTES = 4096
# Exit code if a restart would fail in the same way; the last line says why.
_BAD_INPUT = 2


@dataclasses.dataclass(kw_only=True, slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    log: IO[bytes]
    start: float


class ActorPool(BasePool):
    """Actors in separate processes of one thread, on the cores of this one."""

    def __init__(self, *args: Any) -> None:
        self._processes: dict[int, _Process] = {}
        # Guards the processes against being replaced while they are stopped.
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._paused_at = self._paused_sec = 0.0
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

    def _serve(self) -> None:
        for actor_id in range(self._settings.num_actors):
            self._start(actor_id)
        last_poll = time.monotonic()
        grace = 0.0
        while not self._is_closing.wait(_POLL_SEC) and self._error is None:
            self._is_running.wait()  # without polling
            if self._is_closing.is_set():
                break
            now = time.monotonic()
            # If this process itself was suspended, the actors may have been, too.
            if now - last_poll > self._settings.stuck_sec / 2:
                grace = now
            last_poll = now
            with self._lock:
                for actor_id in range(self._settings.num_actors):
                    if self._is_running.is_set() and self._error is None:
                        self._look_at(actor_id, now, grace)

    def _end_all(self) -> None:
        for process in self._processes.values():
            _end(process)

    def _look_at(self, actor_id: int, now: float, grace: float) -> None:
        """Replaces an actor that has exited or hangs."""
        process = self._processes[actor_id]
        heartbeat = float(self._streams.heartbeat[actor_id])
        sign = max(heartbeat, process.start, grace)
        limit = self._settings.stuck_sec if heartbeat else self._settings.start_sec
        if process.popen.poll() is None and now - sign <= limit:
            return
        code = process.popen.poll()
        if code is None:
            why = f"no heartbeat for {limit:g} s"
        elif code < 0:
            why = f"killed by {signal.Signals(-code).name}"
        else:
            why = f"exit code {code}"
        line = _end(self._processes.pop(actor_id))
        advice = f": fix what its last message says: {line}"
        if code == _BAD_INPUT:
            self._error = ValueError(line)
        elif self._count_restart(f"actor {actor_id}", why, advice):
            self._start(actor_id)

    def _start(self, actor_id: int) -> None:
        self._streams.heartbeat[actor_id] = 0
        descriptors = [self._streams.descriptor]
        weights = None
        if self._weights is not None:
            descriptors.append(self._weights.descriptor)
            weights = (self._weights.num_floats, self._weights.descriptor)
        ids = {"actor_id": actor_id, "num_restarts": self._num_restarts}
        message = (self._settings, self._streams.spec, descriptors[0], weights, ids)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        popen = subprocess.Popen(
            [sys.executable, "-m", __name__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            env=child_environment(ONE_THREAD),
        )
        self._processes[actor_id] = _Process(
            popen=popen, log=log, start=time.monotonic()
        )
        assert popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit is noticed like any other
            popen.stdin.write(pickle.dumps(message))


def _end(process: _Process) -> str:
    """Kills a process if necessary; returns the last line of its log."""
    process.popen.kill()
    process.popen.wait()
    if process.popen.stdin is not None:
        process.popen.stdin.close()
    with process.log as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - _LOG_BYTES, 0))
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(empty)"


# Actors of a Ray cluster run wherever it has a core, some rounds at a time, on streams
# of their own; their records are appended here. Every machine needs this package.

_ASK_SEC = 0.02
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
    """The remote side: runs rounds of the loop and returns their records."""

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
            index = stream - self._own.start
            first, end = (int(counts["num_written"][index]) for counts in (before, now))
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
    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
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

    def _serve(self) -> None:
        self._remotes = [self._make(k) for k in range(self._settings.num_actors)]
        while not self._is_closing.is_set() and self._error is None:
            for actor_id, remote in enumerate(self._remotes):
                if remote.pending is None:
                    self._ask(actor_id, remote)
            pending = [r.pending for r in self._remotes if r.pending is not None]
            if pending:
                self._ray.wait(pending, num_returns=1, timeout=_ASK_SEC)
            else:
                time.sleep(_ASK_SEC)
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
            self._streams.idle_sec[actor_id] += _ASK_SEC
            self._streams.elapsed_sec[actor_id] += _ASK_SEC
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
