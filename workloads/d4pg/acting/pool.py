"""Starts actors, monitors them, and replaces those that exit or hang."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING

from workloads import child_process
from workloads.d4pg.acting.actor import ActorError, BasePool
from workloads.d4pg.acting.process import BAD_INPUT

if TYPE_CHECKING:
    from workloads.d4pg.acting.remote import SharedWeights
    from workloads.d4pg.acting.settings import ActorSettings
    from workloads.d4pg.replay.streams import StepStreams
    from workloads.d4pg.window import Counters


_POLL_SEC = 0.1
_LOG_BYTES = 4096
_MODULE = "workloads.d4pg.acting.process"


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

    def counters(self) -> Counters:
        """Returns the counters so far."""
        found = super().counters()
        elapsed_sec = max(found.elapsed_sec - self._paused_sec, 0.0)
        return dataclasses.replace(found, elapsed_sec=elapsed_sec)

    def _serve(self) -> None:
        for actor_id in range(self._settings.num_actors):
            self._start(actor_id)
        last_poll = time.monotonic()
        grace = 0.0
        while not self._is_closing.wait(_POLL_SEC) and self._error is None:
            if not self._is_running.is_set() and not self._wait_for_resume():
                break
            now = time.monotonic()
            # If this process itself was suspended, the actors may have been, too.
            if now - last_poll > self._settings.stuck_sec / 2:
                grace = now
            last_poll = now
            with self._lock:
                if self._is_paused:
                    continue
                for actor_id in range(self._settings.num_actors):
                    self._look_at(actor_id, now, grace)
                    if self._error is not None:
                        break

    def _wait_for_resume(self) -> bool:
        """Waits without polling; returns whether the pool is still open."""
        self._is_running.wait()
        return not self._is_closing.is_set()

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
        why = _describe(code) if code is not None else f"no heartbeat for {limit:g} s"
        line = self._end(self._processes.pop(actor_id))
        if code == BAD_INPUT:
            self._error = ValueError(line)
        elif self._num_restarts >= self._settings.max_restarts:
            self._error = ActorError(
                f"actor {actor_id} ended ({why}) after {self._num_restarts} "
                "replacements of actors, the most allowed: fix what its last "
                f"message says: {line}"
            )
        else:
            self._num_restarts += 1
            self._start(actor_id)

    def _start(self, actor_id: int) -> None:
        self._streams.heartbeat[actor_id] = 0
        descriptors = [self._streams.descriptor]
        message = {
            "settings": self._settings.to_json(),
            "streams": self._streams.spec.to_json(),
            "streams_descriptor": self._streams.descriptor,
            "num_floats": 0,
            "actor_id": actor_id,
            "num_restarts": self._num_restarts,
        }
        if self._weights is not None:
            descriptors.append(self._weights.descriptor)
            message["num_floats"] = self._weights.num_floats
            message["weights_descriptor"] = self._weights.descriptor
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                _MODULE,
                json.dumps(message),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            env=child_process.environment(child_process.ONE_THREAD),
        )
        self._processes[actor_id] = _Process(
            popen=popen, log=log, start=time.monotonic()
        )

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


def _describe(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
