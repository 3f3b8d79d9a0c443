"""Floods and hostile lines at each listening port: none ends what listens there."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import threading
import time
import types

import pytest

from harness.launch import gang
from harness.launch.gang import MemberExits
from harness.run import resident
from harness.trial import process_tree
from replicator.cluster import local_cluster
from replicator.cluster.environment import address_exchange
from replicator.cluster.environment.address_exchange import Ranks
from replicator.cluster.local_cluster import MAX_STRANGERS, LineListener

HOSTILE = {
    "deep": b"[" * 60_000 + b"\n",
    "long": b"x" * 200_000,
    "garbage": b"\xff\x00\xfe\n",
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "other types": b'[]\n"x"\n1e999\nnull\n{}\n',
    "surrogate": b'{"secret": "\\ud800", "rank": "\\ud800", "state": 1}\n',
    "huge number": b'{"rank": ' + b"9" * 5000 + b', "state": "imported"}\n',
    "a drop": b"{",
}
FLOOD = 1100
"""More connections than a process may have open files here."""


class Gang:
    def __init__(self) -> None:
        self.exits = MemberExits()
        self.address = ("127.0.0.1", int(self.exits.address.rpartition(":")[2]))

    def read(self) -> None:
        self.exits.read(0.01)

    def works(self) -> bool:
        with contextlib.closing(
            gang.connect("{}:{}".format(*self.address), self.exits.secret)
        ) as member:
            gang.send(member, member=("worker", 0), place=0, host="n0")
            gang.send(member, member=("worker", 0), exit_code=0, tail="")
            for _ in range(50):
                self.read()
                if self.exits.codes:
                    break
        return self.exits.codes == {0: 0}

    def close(self) -> None:
        self.exits.close()


class Turns:
    """The socket at which ranks take turns."""

    def __init__(self) -> None:
        processes = types.SimpleNamespace(num_ranks=1)
        prepared = types.SimpleNamespace(
            processes=processes,
            is_client=False,
            polls=False,
            trial_dir=pathlib.Path("/nonexistent"),
            variables={process_tree.MARKER: "/nonexistent"},
            command=(),
        )
        self.resident = resident.Resident(prepared, timeout_sec=60)  # type: ignore[arg-type]
        self.resident._tree = types.SimpleNamespace(  # type: ignore[assignment]
            process=types.SimpleNamespace(poll=lambda: None),
            start=lambda: None,
            end=lambda **_: None,
        )
        self.resident.start()
        self.resident.expect("imported")
        self.address = resident.native_address(self.resident._address)

    def read(self) -> None:
        assert self.resident.poll() is None

    def works(self) -> bool:
        script = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX);"
            "s.connect(chr(0) + sys.argv[1]);"
            """s.sendall(b'{"state": "imported", "rank": 0, "protocol": 2}\\n');"""
            "s.recv(1)"
        )
        command = [sys.executable, "-S", "-c", script, self.address[1:]]
        with subprocess.Popen(command) as rank:
            answers = None
            deadline = time.monotonic() + 20
            try:
                while answers is None and time.monotonic() < deadline:
                    answers = self.resident.poll()
            finally:
                rank.kill()
        return answers is not None and [0] == [answer["rank"] for answer in answers]

    def close(self) -> None:
        self.resident.close()


class Exchange:
    def __init__(self) -> None:
        (port,) = local_cluster.free_ports(1)
        self.address = ("127.0.0.1", port)
        self.ranks = [
            Ranks(rank=rank, world_size=2, chief_host="127.0.0.1", chief_port=port)
            for rank in range(2)
        ]
        self.found: list[object] = []
        self.thread = threading.Thread(target=self._agree, args=(0,))
        self.thread.start()
        while not _connects(self.address):
            pass

    def _agree(self, rank: int) -> None:
        agree = address_exchange.agree.__wrapped__
        self.found.append(agree(self.ranks[rank], timeout_sec=20.0))

    def read(self) -> None:
        """The thread does."""

    def works(self) -> bool:
        self._agree(1)
        self.thread.join(20)
        return len(self.found) == 2 and len(set(self.found)) == 1

    def close(self) -> None:
        self.thread.join(20)


def _connects(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(address, 1).close()
        return True
    return False


@pytest.fixture(params=[Gang, Turns, Exchange])
def port(request, monkeypatch):
    monkeypatch.setattr(resident, "_POLL_SEC", 0.01)
    with contextlib.closing(request.param()) as opened:
        yield opened


@pytest.fixture
def connect(port):
    with contextlib.ExitStack() as opened:

        def run() -> socket.socket:
            family = socket.AF_UNIX if isinstance(port.address, str) else socket.AF_INET
            made = opened.enter_context(socket.socket(family))
            made.settimeout(5)
            made.connect(port.address)
            return made

        yield run


def test_hostile_lines_end_nothing(port, connect) -> None:
    """Deep, long, of other types, without an end: a genuine process is heard."""
    for text in HOSTILE.values():
        with contextlib.suppress(OSError):  # closed while it sends
            connect().sendall(text)
        port.read()

    assert port.works()


def test_a_flood_of_connections_ends_nothing(port, connect) -> None:
    """They cost descriptors of their owner, not of the sweep."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
        for _ in range(FLOOD):
            connect()
            port.read()
        # Both ends are in this process.
        opened = len(list(pathlib.Path("/proc/self/fd").iterdir())) - before - FLOOD
        assert port.works()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert opened <= MAX_STRANGERS + 8


@pytest.fixture
def listener():
    """One that gives strangers a moment."""
    server = socket.create_server(("127.0.0.1", 0))
    made = LineListener(server, max_line_bytes=100, stranger_sec=0.2)
    made.address = server.getsockname()  # type: ignore[attr-defined]
    with contextlib.closing(made):
        yield made


def _read(listener: LineListener, times: int = 10) -> list[bytes | None]:
    return [line for _ in range(times) for _, line in listener.read(0.01)]


def test_a_stranger_that_sends_byte_after_byte_has_a_deadline(listener) -> None:
    """Bytes do not extend it; an admitted connection has none."""
    slow = socket.create_connection(listener.address)
    member = socket.create_connection(listener.address)
    member.sendall(b"me\n")
    for connection, line in [pair for _ in range(5) for pair in listener.read(0.01)]:
        assert line == b"me"
        listener.admit(connection)
    with contextlib.suppress(OSError):
        for _ in range(60):
            slow.sendall(b"x")
            _read(listener, 1)
            time.sleep(0.01)
    member.sendall(b"still\n")

    assert _read(listener) == [b"still"]
    assert len(listener.connections) == 1


def test_lines_behind_one_that_drops_its_sender_are_not_read(listener) -> None:
    """What a stranger says after a wrong secret does not count."""
    stranger = socket.create_connection(listener.address)
    stranger.sendall(b"wrong\n" + json.dumps({"exit_code": 0}).encode() + b"\n")
    heard = []
    for _ in range(10):
        for connection, line in listener.read(0.01):
            heard.append(line)
            listener.drop(connection)

    assert heard == [b"wrong"]


def test_other_users_do_not_reach_a_unix_socket(tmp_path) -> None:
    """The kernel says whose process is at the other end."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "turns"))
    server.listen()
    with (
        contextlib.closing(
            LineListener(server, max_line_bytes=100, user=os.getuid() + 1)
        ) as listener,
        socket.socket(socket.AF_UNIX) as stranger,
    ):
        stranger.connect(str(tmp_path / "turns"))
        stranger.sendall(b"hello\n")
        assert _read(listener) == []
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
