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

from harness.client.scaling_client import ADDRESS_VARIABLE, TRIAL_FILE, native_address
from harness.run.trial_tree import ProcessTree
from harness.trial import rank_file
from harness.trial.measure import COMPATIBLE, PROTOCOL
from harness.trial.rank_file import FirstExit
from replicator.cluster.local_cluster import LineListener
from results.records import protocol as client_protocol
from results.records.protocol import ProtocolError, TrialFile
from results.store import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.run.trial_runner import Prepared
    from harness.run.trial_tree import EndElsewhere, TrialExit
    from results.records.models import (
        TrialSpec,
        Turn,
    )


_POLL_SEC = 0.25
_GRACE_SEC = 30.0
"""For the other processes of a trial, after one of them has closed its connection."""
_MAX_LINE_BYTES = 65_536
"""Bytes of a message; the longest that a process sends has a few hundred."""


class SessionEndedError(RuntimeError):
    """The processes of a trial have ended, or one did not answer in time."""


class Session:
    """A trial that is alive and waits for its turns."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        timeout_sec: float,
        end_elsewhere: EndElsewhere = lambda _: None,
    ) -> None:
        self.prepared = prepared
        self.turns: list[Turn] = []  # void ones included
        self.exit: TrialExit | None = None  # None while its processes run
        self.step_time_sec = 0.0  # of a warm step
        self.busy_sec = 0.0  # in which this trial had the machine
        self.awaited = ""  # the state that ``poll`` waits for
        # Processes that are measured; a program with a client says it.
        self.num_ranks = prepared.processes.num_ranks
        # Whether all let their garbage collector work in sustained turns.
        self.has_sustained = True
        self._deadline = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self._timeout_sec = timeout_sec
        self._address = f"@replicator-harness-{os.getpid()}-{secrets.token_hex(8)}"
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
        return self.exit is None

    @property
    def cores(self) -> tuple[int, ...]:
        cpusets = self.prepared.env.placement.cpusets
        return tuple(sorted({core for cpuset in cpusets for core in cpuset}))

    def start(self) -> None:
        self._socket.bind(native_address(self._address))
        self._socket.listen()
        self._tree.start()

    def processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._tree.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def resident_bytes(self) -> int:
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def send(self, command: str, **fields: Any) -> None:
        """Gives a command to all ranks; ``receive`` notices one that has ended."""
        line = json.dumps({"command": command, **fields}) + "\n"
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.sendall(line.encode())

    def receive(self, state: str) -> list[dict[str, Any]]:
        """Waits until every rank has reached a state; returns their messages."""
        self.expect(state)
        while (answers := self.poll()) is None:
            pass
        return answers

    def expect(self, state: str) -> None:
        self.awaited = state
        self._deadline = time.monotonic() + self._timeout_sec
        self._answers = {}

    def poll(self) -> list[dict[str, Any]] | None:
        """Waits a moment for the state; returns the messages once all ranks have it."""
        is_over = self._tree.process.poll() is not None
        if is_over or time.monotonic() > self._deadline:
            self._end(is_timed_out=not is_over)
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
        self._end()

    def _blame(self, first: FirstExit) -> None:
        """Records what explains the end, unless a process of the trial has done so."""
        folder = self.prepared.trial_dir
        recorded = rank_file.read_first_exit(folder)
        if not recorded.reason and (recorded.rank is None or first.reason):
            rank_file.write_first_exit(folder, first)

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Ends a trial whose program does not fit the study."""
        self._blame(FirstExit(rank=rank, reason=reason))
        self._end()

    def wait(self, timeout_sec: float | None = None) -> TrialExit:
        """Waits until its processes have exited by themselves, then ends the rest."""
        if self.exit is None:
            limit = self._timeout_sec if timeout_sec is None else timeout_sec
            self.exit = self._tree.finish(limit, limit_sec=self._timeout_sec)
            self.close()
        return self.exit

    def _end(self, *, is_timed_out: bool = False) -> NoReturn:
        self.exit = self._tree.end(
            timeout_sec=self._timeout_sec, is_timed_out=is_timed_out
        )
        self.close()
        raise SessionEndedError

    def kill(self) -> None:
        """Kills its processes, whatever state they are in; records nothing."""
        self._tree.kill()
        self.close()

    def close(self) -> None:
        self._listener.close()
        self._ranks.clear()


@contextlib.contextmanager
def busy(*sessions: Session) -> Iterator[None]:
    """Counts the time of the block as time in which they had the machine."""
    started = time.monotonic()
    try:
        yield
    finally:
        for session in sessions:
            session.busy_sec += (time.monotonic() - started) / len(sessions)


# ``docs/client_protocol.md`` describes it; ``scaling_client`` reads it.


def write_client(trial_dir: Path, spec: TrialSpec) -> None:
    assert spec.program is not None
    names = TrialFile.model_fields.keys() - {"protocol", "unit"}
    fields = {name: getattr(spec, name) for name in names}
    asked = TrialFile(**fields, unit=spec.program.unit)
    atomic.write_text(trial_dir / TRIAL_FILE, asked.model_dump_json() + "\n")
