"""Processes of a cluster on this machine, and the lines that processes send each other.

Free of TensorFlow.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from replicator.cluster.configuration import FIRST_PORT, LAST_PORT
from replicator.errors import LocalClusterError

Member = tuple[str, int]


_PORTS = FIRST_PORT, LAST_PORT
_MAX_PORT_TRIES = 1000
_MAX_CLAIMS = 64  # of an older one, the server has started
_claims: collections.deque[socket.socket] = collections.deque()
_POLL_SEC = 0.02
_KILL_WAIT_SEC = 60.0
_TAIL_LINES = 20
_SIGKILL = signal.SIGKILL


class LocalCluster:
    """Processes that form a cluster on this machine; use it in a ``with`` statement.

    All run the same program and read their role from ``TF_CONFIG``. They end with the
    ``with`` block, and with this process however it exits.

    Attributes:
      addresses: ``localhost:port`` of every process, by kind.
      members: Kind and index of every process: chief, then workers, then servers.
      log_dir: Directory of their log files.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        num_workers: int,
        num_ps: int = 0,
        has_chief: bool = False,
        env: Mapping[str, str] | None = None,
        cpusets: Sequence[Collection[int]] | None = None,
        log_dir: str | os.PathLike[str],
    ) -> None:
        """Plans the cluster; entering the ``with`` block starts it.

        Args:
          argv: Program and arguments.
          num_workers: Processes of kind ``worker``.
          num_ps: Processes of kind ``ps``, which usually run until they are stopped.
          has_chief: Whether there is also a process of kind ``chief``.
          env: Environment variables to set on top of those of this process.
          cpusets: Cores for each of ``members``, in that order; None pins nothing.
          log_dir: Directory for log files, created if needed.

        Raises:
          ValueError: A cluster without workers, or a wrong number of cpusets.
        """
        counts = {"chief": int(has_chief), "worker": num_workers, "ps": num_ps}
        if min(num_workers, num_ps) < 0 or num_workers + counts["chief"] < 1:
            raise ValueError(
                f"num_workers={num_workers!r}, num_ps={num_ps!r}, "
                f"has_chief={has_chief!r} do not describe a cluster; use at least one "
                "worker or a chief, and no negative number"
            )
        self.members: tuple[Member, ...] = tuple(
            (kind, index) for kind, count in counts.items() for index in range(count)
        )
        if cpusets is not None and len(cpusets) != len(self.members):
            raise ValueError(
                f"cpusets has {len(cpusets)} entries for {len(self.members)} "
                f"processes {list(self.members)}; pass one per process, in that order"
            )
        self.log_dir = Path(log_dir)
        self.addresses: dict[str, list[str]] = {}
        self._argv = [str(word) for word in argv]
        self._env = dict(env or {})
        self._cpusets = cpusets
        self._processes: dict[Member, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalCluster:  # noqa: PYI034 (Self needs Python 3.11)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.addresses = {}
        ports = free_ports(len(self.members))
        for (kind, _), port in zip(self.members, ports, strict=True):
            self.addresses.setdefault(kind, []).append(f"localhost:{port}")
        try:
            for member in self.members:
                self._start(member)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def pid(self, kind: str, index: int) -> int:
        """Process id of a member."""
        return self._process(kind, index).pid

    def is_running(self, kind: str, index: int) -> bool:
        """Whether a member is still running."""
        return self._process(kind, index).poll() is None

    def exit_code(self, kind: str, index: int) -> int | None:
        """Exit code of a member, negative for a signal; None while it runs."""
        return self._process(kind, index).poll()

    def kill(self, kind: str, index: int, signal: int = signal.SIGKILL) -> None:
        """Sends a signal to one member; for ``SIGKILL``, waits until it has exited."""
        process = self._process(kind, index)
        process.send_signal(signal)
        if signal == _SIGKILL:
            process.wait(_KILL_WAIT_SEC)

    def restart(self, kind: str, index: int) -> None:
        """Starts a member again, with the same address; kills it first if it runs.

        Its output is appended to its log file.
        """
        end_processes([self._process(kind, index)])
        self._start((kind, index))

    def wait(
        self, timeout_sec: float, kinds: Collection[str] = ("chief", "worker")
    ) -> dict[Member, int]:
        """Waits until members have exited.

        Args:
          timeout_sec: Longest wait in all.
          kinds: Kinds of members to wait for.

        Returns:
          Exit code of each, negative for the signal that killed it.

        Raises:
          LocalClusterError: Some still run; all of them were killed. The message has
            the end of their outputs.
        """
        waited = [member for member in self.members if member[0] in kinds]
        deadline = time.monotonic() + timeout_sec
        while late := [member for member in waited if self.is_running(*member)]:
            if time.monotonic() > deadline:
                self.stop()
                names = ", ".join(f"{kind} {index}" for kind, index in late)
                raise LocalClusterError(
                    f"{names} did not exit within {timeout_sec:g} s; all processes "
                    f"were killed\n{self.tails()}"
                )
            time.sleep(_POLL_SEC)
        return {member: self._processes[member].returncode for member in waited}

    def check(
        self, timeout_sec: float, kinds: Collection[str] = ("chief", "worker")
    ) -> None:
        """Waits as ``wait`` does, and checks that every exit code is 0.

        Raises:
          LocalClusterError: Some still run, or failed; with the end of their outputs.
        """
        codes = self.wait(timeout_sec, kinds)
        failed = {member: code for member, code in codes.items() if code}
        if failed:
            names = ", ".join(f"{k} {i} with {c}" for (k, i), c in failed.items())
            raise LocalClusterError(f"processes failed: {names}\n{self.tails()}")

    def output(self, kind: str, index: int) -> str:
        """The output of a member so far, including standard error."""
        self._process(kind, index)
        return self._log(kind, index).read_text(encoding="utf-8", errors="replace")

    def tails(self) -> str:
        """The last lines of each member's output."""
        parts = []
        for kind, index in self._processes:
            lines = self.output(kind, index).splitlines()[-_TAIL_LINES:]
            parts.append(f"-- {kind} {index}:\n" + "\n".join(lines))
        return "\n".join(parts)

    def stop(self) -> None:
        """Kills all running members; leaving the ``with`` block calls it."""
        end_processes(list(self._processes.values()))

    def _start(self, member: Member) -> None:
        kind, index = member
        own = {"type": kind, "index": index}
        env = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            **self._env,
            "TF_CONFIG": json.dumps({"cluster": self.addresses, "task": own}),
        }
        cores: Collection[int] = ()
        if self._cpusets is not None:
            cores = self._cpusets[self.members.index(member)]
        with self._log(kind, index).open("ab") as log:
            self._processes[member] = start_process(self._argv, env, log, cores)

    def _process(self, kind: str, index: int) -> Any:
        if (kind, index) not in self._processes:
            raise LocalClusterError(
                f"no process {kind!r} {index!r} was started; there are "
                f"{list(self._processes) or 'none: enter the with block first'}"
            )
        return self._processes[kind, index]

    def _log(self, kind: str, index: int) -> Path:
        return self.log_dir / f"{kind}_{index}.log"


def start_process(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: Any,
    cores: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program that ends with this process; all its output is one."""
    # A script between: code between fork and exec could wait for locks of TensorFlow.
    wrapper = Path(__file__).with_name("die_with_parent.py")
    pinned = ",".join(str(core) for core in sorted(cores))
    return subprocess.Popen(
        [sys.executable, "-S", str(wrapper), str(os.getpid()), pinned, *argv],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that its own children are killed with it
    )


def end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills processes that were started so, and their own children."""
    for process in processes:
        # The group may outlive its first process, which still reserves its id until
        # it is waited for.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, _SIGKILL)
    for process in processes:
        process.wait(_KILL_WAIT_SEC)


def free_ports(num_ports: int) -> list[int]:
    """Finds free ports of this machine, in random order."""
    with reserved_ports(num_ports) as ports:
        return ports


@contextlib.contextmanager
def reserved_ports(num_ports: int) -> Iterator[list[int]]:
    """Free ports that stay bound inside of the block."""
    chosen: list[int] = []
    with contextlib.ExitStack() as reserved:
        for _ in range(_MAX_PORT_TRIES):
            if len(chosen) == num_ports:
                break
            probe = reserved.enter_context(
                socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            )
            with contextlib.suppress(OSError):
                port = random.SystemRandom().randint(*_PORTS)
                probe.bind(("", port))
                _claim(port)
                chosen.append(port)
        else:
            raise LocalClusterError(
                f"could not find {num_ports} free ports from {_PORTS[0]} to "
                f"{_PORTS[1]} in {_MAX_PORT_TRIES} attempts; stop processes that use "
                "them"
            )
        yield chosen


def _claim(port: int) -> None:
    """Keeps other processes from drawing a port until its server has started.

    Raises:
      OSError: Another process has drawn it.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0replicator port {port}")  # abstract: ends with the process
    except OSError:
        claim.close()
        raise
    _claims.append(claim)
    if len(_claims) > _MAX_CLAIMS:
        _claims.popleft().close()


# Whoever may connect must be expected to: port scanners, health checks, floods. So a
# connection is a stranger's until its owner admits it (by a secret, a registration, the
# user of the other end). Strangers are few, have little time, and send short lines; the
# packets of hosts that cannot be meant do not arrive at all (``port_filter``).

MAX_STRANGERS: Final = 128  # of more, the oldest are closed
STRANGER_SEC: Final = 10.0  # after which a stranger is closed
# Fewer than strangers may be: whoever speaks at once is read before he is old.
_ACCEPTS_PER_ROUND: Final = MAX_STRANGERS // 2
_MAX_OF_A_PROCESS: Final = 4
_RECEIVED_BYTES: Final = 65536
_NO_DESCRIPTOR_SEC: Final = 0.05


class LineListener:
    """Connections that send lines; a stranger's until it is admitted."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        max_line_bytes: int,
        stranger_sec: float = STRANGER_SEC,
        user: int | None = None,
    ) -> None:
        """Takes over a socket; only processes of ``user`` may connect, if given."""
        self._listener = listener
        self._max_line_bytes = max_line_bytes
        self._stranger_sec = stranger_sec
        self._user = user
        self._rest: dict[socket.socket, bytes] = {}
        # In the order of their arrival, with the time of it.
        self._strangers: dict[socket.socket, float] = {}
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def connections(self) -> tuple[socket.socket, ...]:
        return tuple(self._rest)

    def read(self, timeout_sec: float) -> Iterator[tuple[socket.socket, bytes | None]]:
        """Yields connections and the lines that they sent, before it reads on."""
        # None in place of a line says that an admitted connection has ended, or sent a
        # line that is too long.
        ready: list[Any] = [
            key.fileobj for key, _ in self._selector.select(timeout_sec)
        ]
        for source in ready:
            if source in self._rest:
                yield from self._lines_of(source)
        if self._listener in ready:
            self._accept()
        latest = time.monotonic() - self._stranger_sec
        for connection, since in list(self._strangers.items()):
            if since < latest:
                self.drop(connection)

    def _lines_of(
        self, connection: socket.socket
    ) -> Iterator[tuple[socket.socket, bytes | None]]:
        try:
            data = connection.recv(_RECEIVED_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._rest[connection] + data).split(b"\n")
        self._rest[connection] = rest
        for line in lines:
            if len(line) > self._max_line_bytes:
                break
            yield connection, line
            if connection not in self._rest:  # the caller has dropped it
                return
        else:
            if data and len(rest) <= self._max_line_bytes:
                return
        is_stranger = connection in self._strangers
        self.drop(connection)
        if not is_stranger:
            yield connection, None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, or the other side has gone
                if self._strangers:
                    self.drop(next(iter(self._strangers)))
                else:
                    time.sleep(_NO_DESCRIPTOR_SEC)
                return
            if self._user is not None and not self._is_welcome(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._rest[connection] = b""
            self._strangers[connection] = time.monotonic()
            if len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                self.drop(oldest if self._user is None else connection)

    def _is_welcome(self, connection: socket.socket) -> bool:
        """Whether the process at the other end is of the user, and none that floods."""
        process, user = _owner_of(connection)
        owners = [_owner_of(stranger)[0] for stranger in self._strangers]
        return user == self._user and owners.count(process) < _MAX_OF_A_PROCESS

    def admit(self, connection: socket.socket) -> None:
        """Lets a connection stay for as long as it likes."""
        self._strangers.pop(connection, None)
        connection.setblocking(True)

    def drop(self, connection: socket.socket) -> None:
        """Closes a connection, and forgets what it has sent."""
        self._strangers.pop(connection, None)
        if self._rest.pop(connection, None) is not None:
            self._selector.unregister(connection)
            connection.close()

    def close(self) -> None:
        for connection in self.connections:
            self.drop(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._selector.close()
        self._listener.close()


def _owner_of(connection: socket.socket) -> tuple[int, int]:
    """Returns process id and user id of the other end of a Unix socket."""
    size = struct.calcsize("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", data)
    return int(process), int(user)
