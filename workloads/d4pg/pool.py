"""Starts actors, monitors them, and replaces those that exit or hang."""

from __future__ import annotations

import abc
import atexit
import contextlib
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING

from workloads import child_process

from . import process as actor_process

if TYPE_CHECKING:
    from typing_extensions import Self

    from .actor import ActorSettings
    from .streams import SharedWeights, StepStreams


class ActorError(RuntimeError):
    """Actors fail repeatedly; the message says how the last one did."""


class BasePool(abc.ABC):
    """The actors of one replay, managed by a thread.

    The user of the pool calls ``check`` regularly, which raises the error of the
    thread.
    """

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        self._settings = settings
        self._streams = streams
        self._weights = weights
        self._num_restarts = 0
        self._error: Exception | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actors", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises if actors cannot start, or failed more often than allowed."""
        if self._error is not None:
            raise self._error

    @abc.abstractmethod
    def pause(self) -> None:
        """Stops the actors until ``resume``; harmless if they are stopped."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Lets stopped actors continue; the time in between is not theirs."""

    def counters(self) -> dict[str, float]:
        """Returns what the actors have done so far.

        Completed episodes, steps that were not finite, actors that were replaced, and
        the total time that actors have run, and of it waited for the learner.
        """
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
        """Terminates the actors and waits until they have exited."""
        atexit.unregister(self.close)
        self._is_closing.set()
        self._thread.join()

    def _start_thread(self) -> None:
        """Starts the thread; the last statement of a constructor."""
        atexit.register(self.close)
        self._thread.start()

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


@dataclasses.dataclass(kw_only=True, slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    log: IO[bytes]
    start: float


class ActorPool(BasePool):
    """Actors in separate processes, on the cores of this one; see ``BasePool``.

    Each has one thread. Errors have the last line of the failed actor's log.
    """

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        super().__init__(settings, streams, weights)
        self._processes: dict[int, _Process] = {}
        # Guards the processes against being replaced while they are stopped.
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._is_paused = False
        self._paused_at = 0.0
        self._paused_sec = 0.0
        # The parent-death signal is sent when the *thread* that started a child exits:
        # all are started by the one thread that lives as long as the pool.
        self._start_thread()

    def process_ids(self) -> list[int]:
        """Returns the ids of the current processes, by actor."""
        return [process.popen.pid for _, process in sorted(self._processes.items())]

    def pause(self) -> None:
        """Stops the actors until ``resume``; harmless if they are stopped."""
        with self._lock:
            if self._is_paused:
                return
            self._is_paused, self._paused_at = True, time.monotonic()
            self._is_running.clear()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets stopped actors continue; the time in between is not theirs."""
        with self._lock:
            if not self._is_paused:
                return
            self._is_paused = False
            gap = time.monotonic() - self._paused_at
            self._paused_sec += gap * len(self._processes)
            self._signal(signal.SIGCONT)
            self._is_running.set()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.popen.poll() is None:
                process.popen.send_signal(number)

    def counters(self) -> dict[str, float]:
        """Returns the counters so far, without pauses."""
        found = super().counters()
        elapsed_sec = max(found["elapsed_sec"] - self._paused_sec, 0.0)
        return {**found, "elapsed_sec": elapsed_sec}

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
                    if not self._is_paused and self._error is None:
                        self._look_at(actor_id, now, grace)

    def close(self) -> None:
        """Terminates the actors, stopped ones too."""
        self._is_closing.set()
        self._is_running.set()
        super().close()

    def _end_all(self) -> None:
        for process in self._processes.values():
            self._end(process)

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
        line = self._end(self._processes.pop(actor_id))
        advice = f": fix what its last message says: {line}"
        if code == actor_process.BAD_INPUT:
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
            [sys.executable, "-m", actor_process.__name__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            env=child_process.environment(child_process.ONE_THREAD),
        )
        self._processes[actor_id] = _Process(
            popen=popen, log=log, start=time.monotonic()
        )
        assert popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit is noticed like any other
            popen.stdin.write(pickle.dumps(message))

    @staticmethod
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
