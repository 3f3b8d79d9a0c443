"""One trial of a relay, seen from the harness: a process tree that waits for turns.

The other end is ``harness/client/scaling_client.py``, or a program in any language
that keeps to ``docs/client_protocol.md``. Every rank connects on its own; a command
goes to all of them, and is done when all have answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from harness.client.scaling_client import ADDRESS_VARIABLE, native_address
from harness.run.trial_tree import ProcessTree
from harness.trial import first_exit
from harness.trial.first_exit import FirstExit
from harness.trial.turns import COMPATIBLE, PROTOCOL
from replicator.cluster.local_cluster import LineListener
from results.records.client import protocol as client_protocol
from results.records.client.protocol import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.run.prepared import Prepared
    from harness.run.trial_tree import EndElsewhere, TrialExit
    from results.records.models import Turn

_POLL_SEC = 0.25
_GRACE_SEC = 30.0
"""For the other processes of a trial, after one of them has closed its connection."""
_MAX_LINE_BYTES = 65_536
"""Bytes of a message; the longest that a process sends has a few hundred."""


class ResidentEndedError(RuntimeError):
    """The processes of a trial have ended, or one did not answer in time."""


class Resident:
    """A trial that is alive and waits for its turns.

    Attributes:
      prepared: The trial.
      turns: The turns that it has taken, void ones included.
      exit: How its processes ended; None while they run.
      step_time_sec: The duration of a warm step.
      busy_sec: The time in which this trial had the machine.
      awaited: The state that ``poll`` waits for.
      num_ranks: How many processes are measured; a program with a client says it.
      has_sustained: Whether all let their garbage collector work in sustained turns.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        timeout_sec: float,
        end_elsewhere: EndElsewhere = lambda _: None,
    ) -> None:
        """Plans the trial; ``start`` starts it."""
        self.prepared = prepared
        self.turns: list[Turn] = []
        self.exit: TrialExit | None = None
        self.step_time_sec = 0.0
        self.busy_sec = 0.0
        self.awaited = ""
        self.num_ranks = prepared.processes.num_ranks
        self.has_sustained = True
        self._deadline = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self._timeout_sec = timeout_sec
        name = f"replicator-harness-{os.getpid()}-{secrets.token_hex(8)}"
        self._address = f"@{name}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = LineListener(
            self._socket,
            max_line_bytes=_MAX_LINE_BYTES,
            stranger_sec=timeout_sec,  # a rank is silent until it has imported all
            user=os.getuid(),
        )
        self._ranks: dict[socket.socket, int] = {}
        self._tree = ProcessTree(
            prepared.trial_dir,
            {**prepared.variables, ADDRESS_VARIABLE: self._address},
            prepared.command,
            end_elsewhere,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it can take turns."""
        return self.exit is None

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores of its processes."""
        cpusets = self.prepared.env.placement.cpusets
        return tuple(sorted({core for cpuset in cpusets for core in cpuset}))

    def start(self) -> None:
        """Starts its processes."""
        self._socket.bind(native_address(self._address))
        self._socket.listen()
        self._tree.start()

    def processes(self) -> list[psutil.Process]:
        """Returns its processes that run now."""
        try:
            root = psutil.Process(self._tree.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def resident_bytes(self) -> int:
        """Returns the memory that its processes occupy now."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def send(self, command: str, **fields: Any) -> None:
        """Gives a command to all ranks; ``receive`` notices one that has ended."""
        line = json.dumps({"command": command, **fields}).encode("ascii") + b"\n"
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.sendall(line)

    def receive(self, state: str) -> list[dict[str, Any]]:
        """Waits until every rank has reached a state; returns their messages."""
        self.expect(state)
        while (answers := self.poll()) is None:
            pass
        return answers

    def expect(self, state: str) -> None:
        """Begins to wait for a state, for at most the time limit."""
        self.awaited = state
        self._deadline = time.monotonic() + self._timeout_sec
        self._answers = {}

    def poll(self) -> list[dict[str, Any]] | None:
        """Waits a moment for the state; returns the messages once all ranks have it."""
        if self._tree.process.poll() is not None:
            self._end(is_timed_out=False)
        if time.monotonic() > self._deadline:
            self._end(is_timed_out=True)
        for connection, line in self._listener.read(_POLL_SEC):
            if line is None:
                self._follow(connection)
            message = self._message(connection, line)
            if message is None:  # of a stranger, who ends nothing
                self._listener.drop(connection)
            else:
                self._answers[message["rank"]] = message
        if len(self._answers) < self.num_ranks:
            return None
        return [self._answers[rank] for rank in sorted(self._answers)]

    def _message(self, connection: socket.socket, line: bytes) -> dict[str, Any] | None:
        """Returns what a rank says; None if a stranger says what no rank would."""
        known = self._ranks.get(connection)
        try:
            message = client_protocol.read_message(line)
        except ProtocolError as error:
            if known is None:
                return None
            self.fail(f"rank {known} sent no message of the protocol: {error}", known)
        rank, state = message["rank"], message["state"]
        if known is None:
            return message if self._meet(connection, message) else None
        if state != self.awaited or known != rank:
            self.fail(
                f"rank {known} said {state!r}"
                + f" as rank {rank}" * (known != rank)
                + f" where {self.awaited!r} was expected: docs/client_protocol.md has"
                " the order of messages",
                known,
            )
        return message

    def _meet(self, connection: socket.socket, message: dict[str, Any]) -> bool:
        """Admits a process that can take part; whether it does."""
        rank, num_ranks = message["rank"], message.get("num_ranks")
        if message["state"] != self.awaited or "protocol" not in message:
            return False
        is_client = self.prepared.is_client
        if is_client and message["protocol"] not in COMPATIBLE:
            self.fail(
                f"rank {rank} speaks version {message['protocol']} of the protocol,"
                f" this harness {PROTOCOL}: give the program the client of this"
                " harness ('python -m harness.client FOLDER' writes it)",
                rank,
            )
        if is_client and num_ranks is not None:
            self.num_ranks = num_ranks if not self._ranks else self.num_ranks
            if num_ranks != self.num_ranks:
                self.fail(
                    f"rank {rank} says that there are {num_ranks} processes, others"
                    f" that there are {self.num_ranks}: pass the same num_ranks to"
                    " connect() in all of them"
                )
        if rank >= self.num_ranks or rank in self._ranks.values():
            if is_client:
                self.fail(
                    f"two processes are rank {rank} of {self.num_ranks}, or there is"
                    " no such rank: number them from 0, as torchrun, mpirun and srun"
                    " do, or pass rank and num_ranks to connect()"
                )
            return False
        self.has_sustained = self.has_sustained and message["has_sustained"]
        self._listener.admit(connection)
        self._ranks[connection] = rank
        return True

    def _follow(self, connection: socket.socket) -> NoReturn:
        """Ends the trial of which a rank has closed its connection."""
        rank = self._ranks.pop(connection, None)
        self._blame(FirstExit(rank=rank))
        try:
            self._tree.wait(_GRACE_SEC)
        except subprocess.TimeoutExpired:
            self.fail(
                "a process closed its connection, and the others had not ended"
                f" {_GRACE_SEC:g} s later; let all end when one fails, as torchrun and"
                " mpirun do",
                rank,
            )
        self._end(is_timed_out=False)

    def _blame(self, first: FirstExit) -> None:
        """Records what explains the end, unless a process of the trial has done so."""
        folder = self.prepared.trial_dir
        recorded = first_exit.read(folder)
        if not recorded.reason and (recorded.rank is None or first.reason):
            first_exit.write(folder, first)

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Ends a trial whose program does not fit the study."""
        self._blame(FirstExit(rank=rank, reason=reason))
        self._end(is_timed_out=False)

    def wait(self, timeout_sec: float | None = None) -> TrialExit:
        """Waits until its processes have exited by themselves, then ends the rest."""
        limit = self._timeout_sec if timeout_sec is None else timeout_sec
        is_timed_out = False
        if self.exit is None:
            try:
                self._tree.process.wait(limit)
            except subprocess.TimeoutExpired:
                is_timed_out = True
            self.end(is_timed_out=is_timed_out)
        assert self.exit is not None
        return self.exit

    def _end(self, *, is_timed_out: bool) -> NoReturn:
        self.end(is_timed_out=is_timed_out)
        raise ResidentEndedError

    def end(self, *, is_timed_out: bool = False) -> None:
        """Ends its processes; harmless if they have ended."""
        if self.exit is None:
            self.exit = self._tree.end(
                timeout_sec=self._timeout_sec, is_timed_out=is_timed_out
            )
        self.close()

    def kill(self) -> None:
        """Kills its processes, whatever state they are in; records nothing."""
        self._tree.kill()
        self.close()

    def close(self) -> None:
        """Closes all sockets."""
        self._listener.close()
        self._ranks.clear()


def latest(answers: Sequence[dict[str, Any]], name: str) -> int:
    """Returns the largest value over ranks."""
    return max(int(answer[name]) for answer in answers)


def total(answers: Sequence[dict[str, Any]], name: str) -> float:
    """Returns the sum over ranks."""
    return float(sum(answer[name] for answer in answers))
