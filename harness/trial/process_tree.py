"""Finds and kills every process of a trial, including orphans.

A process belongs to the trial if it descends from the trial's first process, is in its
session, or carries the trial's marker in its environment. The marker finds those that
left the session and were adopted by another parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from replicator.cluster.die_with_parent import request_death_signal

__all__ = ["request_death_signal"]

MARKER = "REPLICATOR_HARNESS_TRIAL"
"""Environment variable that every process of a trial inherits: its directory."""

END_COMMAND = (sys.executable, "-m", "harness.trial.process_tree")
"""Ends the processes of a trial, whose directory is appended."""

TERMINATE_GRACE_SEC = 3.0
KILL_GRACE_SEC = 10.0
_MAX_ROUNDS = 20


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def on_stop_signals(
    handler: Callable[[int, Any], Any] | signal.Handlers,
) -> Iterator[None]:
    """Has a handler called on signals to stop, for as long as the block lasts."""
    if threading.current_thread() is not threading.main_thread():  # can set none
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class KillTreeError(RuntimeError):
    """Processes of a trial survived SIGKILL; somebody has to look at the machine."""


def find_tree(marker: str, root_pid: int | None = None) -> list[psutil.Process]:
    """Returns the living processes of a trial."""
    by_pid: dict[int, psutil.Process] = {}
    if root_pid is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(root_pid)
            # After it exits, its id can belong to another process.
            if _belongs(root, marker, root_pid):
                by_pid[root_pid] = root
                by_pid |= {p.pid: p for p in root.children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid == os.getpid() or process.pid in by_pid:
            continue
        if _belongs(process, marker, root_pid):
            by_pid[process.pid] = process
    return [process for process in by_pid.values() if is_alive(process)]


def _belongs(process: psutil.Process, marker: str, root_pid: int | None) -> bool:
    try:
        if root_pid is not None and os.getsid(process.pid) == root_pid:
            return True
        return process.environ().get(MARKER) == marker
    except (psutil.Error, OSError):
        # Exited, a kernel thread, or another user's: not one of the trial.
        return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_tree(marker: str, root_pid: int | None = None) -> int:
    """Ends a trial: SIGTERM to all, then SIGKILL to the rest; returns how many."""
    killed: set[int] = set()
    signal_number, grace_sec = signal.SIGTERM, TERMINATE_GRACE_SEC
    for _ in range(_MAX_ROUNDS):  # a process can start another in the meantime
        processes = find_tree(marker, root_pid)
        if not processes:
            return len(killed)
        for process in processes:
            killed.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal_number)
        deadline = time.monotonic() + grace_sec
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.02)
        signal_number, grace_sec = signal.SIGKILL, KILL_GRACE_SEC
    pids = ", ".join(str(process.pid) for process in find_tree(marker, root_pid))
    raise KillTreeError(f"processes {pids} of trial {marker!r} survive SIGKILL")


def kill_group(pid: int) -> None:
    """Kills the group of a process, and the process: it may not lead its group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


_LONGEST_WAIT_SEC = 2e6
"""Milliseconds have to fit into an int of C; a longer limit is none."""


def wait_for_end(process: psutil.Popen, timeout_sec: float) -> int:
    """Returns the exit code of a child at once: ``subprocess`` looks every 50 ms."""
    return int(process.wait(timeout_sec if timeout_sec < _LONGEST_WAIT_SEC else None))


# A trial ends with the harness, even if that is killed, by two mechanisms that each
# have a gap: the parent-death signal (lost if the parent died before the request) and
# end-of-file on a pipe of the harness (works once this process runs Python code).

HEARTBEAT_SEC = 5.0


def watch_pipe(descriptor: int) -> None:
    """Kills this process group when the pipe's other end is closed; uses a thread."""

    def wait() -> None:
        # The harness writes nothing: any return is end-of-file.
        while os.read(descriptor, 1):
            pass
        kill_group(os.getpid())

    threading.Thread(target=wait, name="watch-parent", daemon=True).start()


def beat(write: Callable[[], None]) -> None:
    """Calls ``write`` every ``HEARTBEAT_SEC`` in a separate thread."""

    def loop() -> None:
        while True:
            time.sleep(HEARTBEAT_SEC)
            write()

    threading.Thread(target=loop, name="heartbeat", daemon=True).start()


if __name__ == "__main__":
    kill_tree(os.path.realpath(sys.argv[1]))
