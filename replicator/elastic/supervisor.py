"""The supervisor of an elastic job: starts its workers, again and again.

    python -m replicator.elastic --min-workers 2 --max-workers 4 \
        --discover ./hosts.sh -- python train.py

TensorFlow joins a cluster once per process. So when a worker is lost, or a host is new,
all workers are started again, and ``ElasticState`` continues from the last commit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from replicator.cluster import die_with_parent
from replicator.cluster.local_cluster import free_ports
from replicator.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Slots = Mapping[str, int]  # workers that each host has room for, in order
    Place = tuple[str, int]  # host and local rank of a worker; its rank is the index

VARIABLE = "REPLICATOR_ELASTIC"
"""What the supervisor tells each worker, in JSON; see ``Supervisor._start``."""
STOPPED = 75
"""Exit code of a worker that was asked to stop, and did after a commit."""
_POLL_SEC = 0.05
_WAITING_LINE_SEC = 30.0
_EXIT_SEC = 5.0  # that workers get to exit by themselves, after another one did
_LONGEST_COOLDOWN_SEC = 3600.0
_SSH = (  # with a terminal, whose end ends the worker
    "ssh -tt -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=2 "
    "{host} {command}"
)
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?::([0-9]{1,5}))?")
# Errors of workers that fail because another one does.
_DERIVED = re.compile(r"\b(WorkerLostError|UnreachableError|AbortedError)\b")
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
        wrapper = sys.executable, "-S", die_with_parent.__file__, str(os.getpid()), ""
        self._process = subprocess.Popen(
            [*wrapper, *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its own children are killed with it
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            _say(text, self.name)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1.0)

    def is_derived(self) -> bool:
        """Whether it failed because another worker did."""
        return any(map(_DERIVED.search, self._tail))

    def cause(self, code: int | None) -> str:
        """Why it ended, in one line."""
        if code is None:
            return "does not respond"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        said = list(filter(str.strip, self._tail)) or ["it printed nothing"]
        last = (list(filter(_ERROR.match, said)) or said)[-1]
        return f"exited with code {code}: {last[:500]}"


class Supervisor:
    """Runs one job to its end."""

    def __init__(self, given: argparse.Namespace) -> None:
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
            cause = failed.cause(failed.exit_code()) if failed else ""
            codes = {worker.exit_code() for worker in workers}
            for worker in workers:
                worker.kill()
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
        most, least = self._given.max_workers, self._given.min_workers
        slots, now = self._slots, time.monotonic()
        good = {h: n for h, n in slots.items() if self._left_out.get(h, 0.0) <= now}
        if sum(good.values()) >= least:
            slots = good
        in_use = {host: slots[host] for host, _ in current if host in slots}
        room = {**in_use, **slots}
        return [(host, n) for host in room for n in range(room[host])][:most]

    def _wait_for_places(self, current: Sequence[Place]) -> list[Place]:
        next_line = 0.0
        while not self.is_stopping:
            places = self._places(current)
            if len(places) >= self._given.min_workers:
                return places
            if time.monotonic() >= next_line:
                least = self._given.min_workers
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
        self._stop_file.unlink(missing_ok=True)
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
                words = [f"{name}={value}" for name, value in told.items()]
                argv = self._remote(host, ["env", *words, *argv])
            workers.append(Worker(host, rank, argv, {**os.environ, **told}))
        return workers

    def _remote(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command that runs another one on a host."""
        command = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(argv)}"
        words = shlex.split(self._given.launcher)
        return [w.replace("{host}", host).replace("{command}", command) for w in words]

    def _watch(
        self, workers: Sequence[Worker], places: Sequence[Place]
    ) -> Worker | None:
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
        failed.sort(key=Worker.is_derived)
        if failed and not failed[0].is_derived():
            return failed[0]
        if not running or time.monotonic() > deadline:
            return (running or failed or workers)[0]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ElasticError(f"{message}; see python -m replicator.elastic --help")


def _at_least(limit: float, kind: Any = int) -> Any:
    def number(text: str) -> Any:
        if not limit <= (value := kind(text)) < 1e9:  # noqa: PLR2004 (seconds of 30 years)
            raise ValueError
        return value

    number.__name__ = f"{kind.__name__} (at least {limit})"
    return number


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m replicator.elastic",
        usage="%(prog)s [options] -- program [argument ...]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, count, seconds = parser.add_argument, _at_least(1), _at_least(0, float)
    add("--min-workers", type=count, default=1, help="with fewer, the job waits")
    add("--max-workers", type=count, help="None: as --min-workers")
    add("--discover", help="script that prints host:slots lines; None: this machine")
    add("--poll-sec", type=seconds, default=5.0, help="between its calls")
    add("--state-dir", default="elastic-state", help="folder that all hosts share")
    add("--memory-dir", default="/dev/shm", help="folder in memory")  # noqa: S108
    add("--disk-every", type=count, default=10, help="commits for each one on disk")
    add("--launcher", default=_SSH, help="runs {command} on {host}")
    add("--max-restarts", type=_at_least(0), default=10, help="after failed workers")
    add("--cooldown-sec", type=seconds, default=10.0, help="of a failed host; doubles")
    add("--grace-sec", type=seconds, default=30.0, help="for a commit after SIGTERM")
    add("--served", action="store_true", help="only worker 0 runs the program")
    at = argv.index("--") if "--" in argv else len(argv)
    given = parser.parse_args(argv[:at])
    given.command = argv[at + 1 :]
    given.max_workers = given.max_workers or given.min_workers
    if given.max_workers < given.min_workers:
        parser.error(
            f"--max-workers {given.max_workers} is less than --min-workers "
            f"{given.min_workers}; pass at least as many"
        )
    if not given.command or shutil.which(given.command[0]) is None:
        parser.error(
            f"behind '--' a program is needed, but {given.command[:1]} is none"
        )
    if "{host}" not in given.launcher or "{command}" not in given.launcher:
        parser.error(
            f"--launcher {given.launcher!r} has no {{host}} or no {{command}}; write "
            "for example 'srun -N1 -n1 -w {host} sh -c {command}'"
        )
    return given


def run() -> NoReturn:
    """Supervises the job that the arguments describe, and exits."""
    try:
        supervisor = Supervisor(_parse(sys.argv[1:]))

        def stop(*_: Any) -> None:
            supervisor.is_stopping = True

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        code = supervisor.run()
    except (ElasticError, OSError) as error:
        _say(f"error: {error}")
        code = 1
    sys.exit(code)
