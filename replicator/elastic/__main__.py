"""The supervisor of an elastic job: starts its workers, again and again.

    python -m replicator.elastic --min-workers 2 --max-workers 4 \
        --discover ./hosts.sh -- python train.py

TensorFlow joins a cluster once per process. So when a worker is lost, or a host is new,
all workers are started again, and ``ElasticState`` continues from the last commit.
"""

from __future__ import annotations

import collections
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from replicator.cluster.local_cluster import end_processes, free_ports, start_process
from replicator.elastic import STOPPED, VARIABLE
from replicator.errors import ElasticError

Slots = Mapping[str, int]  # workers that each host has room for, in order
Place = tuple[str, int]  # host and local rank of a worker; its rank is the index

_POLL_SEC = 0.05
_WAITING_LINE_SEC = 30.0
_EXIT_SEC = 5.0  # that workers get to exit by themselves, after another one did
_LONGEST_COOLDOWN_SEC = 3600.0
_SSH = (  # with a terminal, whose end ends the worker
    "ssh -tt -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=2 "
    "{host} {command}"
)
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?::([0-9]{1,5}))?")
# Errors of workers that fail because another one does, which may be silent.
_DERIVED = re.compile(r"\b(WorkerLostError|UnreachableError|AbortedError)\b")
_SILENT = re.compile(r"WorkerLostError: .*: worker ([0-9]+) \(\S+\) did not respond")
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b|error:")


def _say(text: str, who: str = "elastic") -> None:
    sys.stdout.write(f"[{who}] {text}\n")  # at once: several threads write
    sys.stdout.flush()


def _discover(script: str) -> Slots:
    """Asks a script, whose lines are Horovod's: ``host:slots``, or ``host``."""
    name = f"the script of --discover, {script!r},"
    try:
        done = subprocess.run(
            shlex.split(script), capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        raise ElasticError(
            f"{name} fails: {said.splitlines()[-1][:200]}; pass a program that prints "
            "a line 'host:slots' for each host"
        ) from error
    slots: dict[str, int] = {}
    for line in filter(None, map(str.strip, done.stdout.splitlines())):
        match = _HOST.fullmatch(line)
        if match is None or match[1] in slots:
            raise ElasticError(
                f"{name} prints {line[:100]!r}, which is not 'host:slots', or a host "
                "that it has already; print each host in one line"
            )
        slots[match[1]] = int(match[2] or 1)
    return slots


def _is_local(host: str) -> bool:
    here = "localhost", socket.gethostname(), socket.getfqdn()
    return host in here or host.startswith("127.")


class Worker:
    """One worker process, or the launcher that runs it on another host."""

    def __init__(
        self, host: str, rank: int, argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.host, self.name = host, f"{host}/{rank}"
        self._tail: collections.deque[str] = collections.deque(maxlen=200)
        self.process = start_process(argv, env, subprocess.PIPE)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            _say(text, self.name)

    def exit_code(self) -> int | None:
        """Its exit code. No other process gets its id before it is killed."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        state = os.waitid(os.P_PID, self.process.pid, how)
        if state is None:
            return None
        is_exit = state.si_code == os.CLD_EXITED
        return state.si_status if is_exit else -state.si_status

    def said(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first line of its last ones that has a pattern."""
        return next(filter(None, map(pattern.search, list(self._tail))), None)

    def cause(self) -> str:
        """Why it ended, in one line."""
        code = self.exit_code()
        if code is None:
            return "does not respond"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        said = list(filter(str.strip, self._tail)) or ["it printed nothing"]
        last = (list(filter(_ERROR.match, said)) or said)[-1]
        return f"exited with code {code}: {last[:500]}"


class Supervisor:
    """Runs one job to its end."""

    def __init__(self, given: SimpleNamespace) -> None:
        self._given = given
        self._folder = Path(given.state_dir).resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ElasticError(
                f"another supervisor runs the job in --state-dir {given.state_dir!r}; "
                "wait for its end, or pass another folder"
            ) from error
        self._record = self._folder / "elastic.json"
        self._known: dict[str, Any] = {"job": secrets.token_hex(6), "start": 0}
        if self._record.exists():
            self._known = json.loads(self._record.read_text())
            _say(f"goes on with the job in --state-dir {given.state_dir}")
        job = f"replicator-elastic-{self._known['job']}"
        self._memory = Path(given.memory_dir).resolve() / job
        self._slots: Slots = {"localhost": given.max_workers}
        if given.discover is not None:
            self._slots = _discover(given.discover)
            threading.Thread(target=self._poll, daemon=True).start()
        self._num_failures: collections.Counter[str] = collections.Counter()
        self._left_out: dict[str, float] = {}  # until when
        self.is_stopping = False

    def run(self) -> int:
        """Runs the job; returns the exit code of the supervisor."""
        given = self._given
        places: list[Place] = []
        while places := self._wait_for_places(places):
            workers = self._start(places)
            failed = self._watch(workers, places)
            cause = failed.cause() if failed else ""
            codes = {worker.exit_code() for worker in workers}
            end_processes([worker.process for worker in workers])
            for worker in workers:
                worker.reader.join(1.0)
            if codes == {0}:
                return 0
            if failed is None or self.is_stopping:
                continue
            _say(f"worker {failed.name} {cause}")
            num_restarts, host = self._num_failures.total(), failed.host
            if num_restarts >= given.max_restarts:
                raise ElasticError(
                    f"gave up after {num_restarts} restarts (--max-restarts), see the "
                    f"line above; commits stay in {self._memory} and {self._folder}: "
                    "repair the cause, and start again with the same --state-dir"
                )
            seconds = given.cooldown_sec * 2.0 ** self._num_failures[host]
            seconds = min(seconds, _LONGEST_COOLDOWN_SEC)
            self._num_failures[host] += 1
            self._left_out[host] = time.monotonic() + seconds
            _say(
                f"restart {num_restarts + 1} of {given.max_restarts}; host {host} is "
                f"left out for {seconds:g} s if others suffice"
            )
        _say(f"stopped; to go on, start again with --state-dir {given.state_dir}")
        return 128 + signal.SIGTERM

    def _poll(self) -> None:
        problem = ""
        while True:
            time.sleep(self._given.poll_sec)
            before, problem = problem, ""
            try:
                self._slots = _discover(self._given.discover)
            except ElasticError as error:
                problem = f"{error}; hosts stay as they were"
            if problem not in ("", before):
                _say(problem)

    def _places(self, current: Sequence[Place]) -> list[Place]:
        """Where workers are to run now: on hosts that are in use before new ones."""
        slots, now = self._slots, time.monotonic()
        good = {h: n for h, n in slots.items() if self._left_out.get(h, 0.0) <= now}
        if sum(good.values()) >= self._given.min_workers:
            slots = good
        in_use = {host: slots[host] for host, _ in current if host in slots}
        places = [(host, n) for host in {**in_use, **slots} for n in range(slots[host])]
        return places[: self._given.max_workers]

    def _wait_for_places(self, current: Sequence[Place]) -> list[Place]:
        least, next_line = self._given.min_workers, 0.0
        while not self.is_stopping:
            places = self._places(current)
            if len(places) >= least:
                return places
            if time.monotonic() >= next_line:
                _say(f"waits for {least} workers: there is room for {len(places)}")
                next_line = time.monotonic() + _WAITING_LINE_SEC
            time.sleep(_POLL_SEC)
        return []

    def _start(self, places: Sequence[Place]) -> list[Worker]:
        self._known["start"] += 1
        temporary = self._record.with_suffix(".new")
        temporary.write_text(json.dumps(self._known))
        temporary.replace(self._record)
        self._stop_file = self._folder / f"stop-{self._known['start']}"
        hosts = list(dict.fromkeys(host for host, _ in places))
        _say(f"starts {len(places)} workers on {', '.join(hosts)}")
        chief = hosts[0]
        if _is_local(chief):  # which other hosts need a name for
            is_alone = all(map(_is_local, hosts))
            chief = "127.0.0.1" if is_alone else socket.gethostname()
        (port,) = free_ports(1)
        workers = []
        for rank, (host, local_rank) in enumerate(places):
            job = {
                "disk": str(self._folder / "commits"),
                "disk_every": self._given.disk_every,
                "is_first_of_host": local_rank == 0,
                "memory": str(self._memory / host),
                "num_hosts": len(hosts),
                "start": self._known["start"],
                "stop_file": str(self._stop_file),
            }
            told = {
                "LOCAL_RANK": str(local_rank),
                "MASTER_ADDR": chief,
                "MASTER_PORT": str(port),
                "PYTHONUNBUFFERED": "1",
                "RANK": str(rank),
                "TF_CONFIG": "",  # would count before the others
                "WORLD_SIZE": str(len(places)),
                VARIABLE: json.dumps(job),
            }
            argv = self._given.command
            if rank and self._given.served:
                argv = [sys.executable, "-m", "replicator.server"]
            if not _is_local(host):
                there = ["env", *(f"{name}={told[name]}" for name in told), *argv]
                folder = shlex.quote(str(Path.cwd()))
                command = f"cd {folder} && exec {shlex.join(there)}"
                argv = [
                    word.replace("{host}", host).replace("{command}", command)
                    for word in shlex.split(self._given.launcher)
                ]
            workers.append(Worker(host, rank, argv, {**os.environ, **told}))
        return workers

    def _watch(self, workers: list[Worker], places: list[Place]) -> Worker | None:
        """Waits until workers end; returns the one that failed first, if one did."""
        given, deadline = self._given, float("inf")
        while True:
            time.sleep(_POLL_SEC)
            codes = {worker.exit_code() for worker in workers}
            if codes - {None, 0}:
                first = _first_to_fail(workers)
                return None if STOPPED in codes else first
            if None not in codes or time.monotonic() > deadline:
                return None
            wanted = self._places(places)
            changes = wanted != places and len(wanted) >= given.min_workers
            if (changes or self.is_stopping) and not self._stop_file.exists():
                what = "stop" if self.is_stopping else f"become {len(wanted)}"
                _say(f"workers {what} after the next commit")
                self._stop_file.touch()
            if self.is_stopping and deadline == float("inf"):
                deadline = time.monotonic() + given.grace_sec


def _first_to_fail(workers: Sequence[Worker]) -> Worker:
    """The worker that failed by itself, or that the others waited for."""
    deadline = time.monotonic() + _EXIT_SEC
    while True:
        time.sleep(_POLL_SEC)  # in which output is read
        running = [worker for worker in workers if worker.exit_code() is None]
        failed = [w for w in workers if w.exit_code() not in (None, 0, STOPPED)]
        accused = {match[1] for each in failed if (match := each.said(_SILENT))}
        silent = [w for rank, w in enumerate(workers) if str(rank) in accused]
        causes = [worker for worker in failed if not worker.said(_DERIVED)]
        causes += [worker for worker in silent if worker in running]
        if causes:
            return causes[0]
        if not running or time.monotonic() > deadline:
            return (running or failed or workers)[0]


_add = click.option
_COUNT = click.IntRange(1)
_SECONDS = click.FloatRange(0.0, 1e9)


@click.command(options_metavar="[OPTIONS] --", context_settings={"show_default": True})
@_add("--min-workers", type=_COUNT, default=1, help="With fewer, the job waits.")
@_add("--max-workers", type=_COUNT, help="[default: as --min-workers]")
@_add("--discover", help="Prints host:slots lines. [default: this machine]")
@_add("--poll-sec", type=_SECONDS, default=5.0, help="Between its calls.")
@_add("--state-dir", default="elastic-state", help="Folder that all hosts share.")
@_add("--memory-dir", default="/dev/shm", help="Folder in memory.")  # noqa: S108
@_add("--disk-every", type=_COUNT, default=10, help="Commits for each one on disk.")
@_add("--launcher", default=_SSH, help="Runs {command} on {host}.")
@_add("--max-restarts", type=click.IntRange(0), default=10, help="Of failed workers.")
@_add("--cooldown-sec", type=_SECONDS, default=10.0, help="Of a failed host; doubles.")
@_add("--grace-sec", type=_SECONDS, default=30.0, help="For a commit after SIGTERM.")
@_add("--served", is_flag=True, help="Only worker 0 runs the program.")
@click.argument("command", nargs=-1, required=True)
def _supervise(**options: Any) -> int:
    """Trains with workers that may be lost and join."""
    given = SimpleNamespace(**options)
    for name in ("poll_sec", "cooldown_sec", "grace_sec"):
        if math.isnan(options[name]):
            option = f"--{name.replace('_', '-')}"
            raise ElasticError(f"{option} nan is no number; pass seconds, 0 to 1e9")
    given.max_workers = given.max_workers or given.min_workers
    if given.max_workers < given.min_workers:
        raise ElasticError(
            f"--max-workers {given.max_workers} is less than --min-workers "
            f"{given.min_workers}; pass at least as many"
        )
    if shutil.which(given.command[0]) is None:
        raise ElasticError(
            f"{given.command[0]!r} is no program; write the program and its arguments "
            "behind '--'"
        )
    if "{host}" not in given.launcher or "{command}" not in given.launcher:
        raise ElasticError(
            f"--launcher {given.launcher!r} has no {{host}} or no {{command}}; write "
            "for example 'srun -N1 -n1 -w {host} sh -c {command}'"
        )
    supervisor = Supervisor(given)

    def stop(*_: Any) -> None:
        supervisor.is_stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return supervisor.run()


def run() -> None:
    """Supervises the job that the arguments describe, and exits."""
    name = "python -m replicator.elastic"
    try:
        code = _supervise.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        _say(f"error: {error.format_message()} See {name} --help")
        code = 1
    except (ElasticError, OSError) as error:
        _say(f"error: {error}")
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    run()
