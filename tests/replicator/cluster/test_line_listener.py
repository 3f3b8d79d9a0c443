"""Floods and hostile lines at each listening port: none ends what listens there."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time
import types
from concurrent import futures

import pytest

from harness.launch import gang
from harness.run import trial_tree
from harness.trial import process_tree
from replicator.cluster import address_exchange, configuration, local_cluster
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
FLOOD = 1100  # more connections than a process may have open files here
WAIT_SEC = 20.0


class Gang:
    """The port at which members of a gang say how they ended."""

    def __init__(self):
        self.exits = gang.MemberExits()
        self.address = ("127.0.0.1", int(self.exits.address.rpartition(":")[2]))
        self.close = self.exits.close

    def read(self):
        self.exits.read(0.01)

    def works(self):
        with contextlib.closing(
            gang.connect("{}:{}".format(*self.address), self.exits.secret)
        ) as member:
            gang.send(member, place=0, host="n0")
            gang.send(member, exit_code=0, tail="")
            for _ in range(50):
                self.read()
                if self.exits.ends:
                    break
        return self.exits.ends == {0: gang.MemberEnd(code=0)}


class Turns:
    """The socket at which ranks take turns."""

    def __init__(self):
        prepared = types.SimpleNamespace(
            processes=types.SimpleNamespace(num_ranks=1),
            is_client=False,
            polls=False,
            trial_dir=pathlib.Path("/nonexistent"),
            variables={process_tree.MARKER: "/nonexistent"},
            command=(),
        )
        self.session = trial_tree.Session(prepared, timeout_sec=60)
        self.session._tree = types.SimpleNamespace(
            process=types.SimpleNamespace(poll=lambda: None),
            start=lambda: None,
            end=lambda **_: None,
        )
        self.session.start()
        self.session.expect("imported")
        self.address = trial_tree.native_address(self.session._address)
        self.close = self.session.close

    def read(self):
        assert self.session.poll() is None

    def works(self):
        script = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX);"
            "s.connect(chr(0) + sys.argv[1]);"
            """s.sendall(b'{"state": "imported", "rank": 0, "protocol": 2}\\n');"""
            "s.recv(1)"
        )
        command = [sys.executable, "-S", "-c", script, self.address[1:]]
        with subprocess.Popen(command) as rank:
            answers = None
            deadline = time.monotonic() + WAIT_SEC
            try:
                while answers is None and time.monotonic() < deadline:
                    answers = self.session.poll()
            finally:
                rank.kill()
        return answers is not None and [0] == [answer["rank"] for answer in answers]


class Exchange:
    """The port at which processes without addresses meet; one is there early."""

    def __init__(self):
        (port,) = local_cluster.free_ports(1)
        self.address = ("127.0.0.1", port)
        self.pool = futures.ThreadPoolExecutor(2)
        self.others = [self.pool.submit(self._agree, rank) for rank in range(2)]
        self.close = self.pool.shutdown
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(self.address, 1).close()
                break

    def _agree(self, rank):
        ranks = configuration.Ranks(
            rank=rank,
            world_size=3,
            chief_host=self.address[0],
            chief_port=self.address[1],
        )
        return address_exchange.agree(ranks, timeout_sec=WAIT_SEC)

    def read(self):
        """A thread does."""

    def works(self):
        found = [self._agree(2), *(other.result(WAIT_SEC) for other in self.others)]
        return len(set(found)) == 1


@pytest.mark.parametrize("kind", [Gang, Turns, Exchange])
def test_hostile_lines_and_a_flood_of_connections_end_nothing(kind, monkeypatch):
    """Connections cost descriptors of their owner; a genuine process is heard."""
    monkeypatch.setattr(trial_tree, "_POLL_SEC", 0.01)
    descriptors = pathlib.Path("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        port = opened.enter_context(contextlib.closing(kind()))
        family = socket.AF_UNIX if isinstance(port.address, str) else socket.AF_INET

        def connect():
            made = opened.enter_context(socket.socket(family))
            made.settimeout(5)
            made.connect(port.address)
            return made

        for text in HOSTILE.values():
            with contextlib.suppress(OSError):  # closed while it sends
                connect().sendall(text)
            port.read()
        before = len(list(descriptors.iterdir()))
        for _ in range(FLOOD):
            connect()
            port.read()
        # Both ends are in this process.
        num_kept = len(list(descriptors.iterdir())) - before - FLOOD

        assert port.works()
        assert num_kept <= MAX_STRANGERS + 8


@pytest.fixture
def listener():
    """One that gives strangers a moment."""
    server = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(
        LineListener(server, max_line_bytes=100, stranger_sec=0.2)
    ) as made:
        made.address = server.getsockname()
        yield made


def read(listener, times=10):
    return [pair for _ in range(times) for pair in listener.read(0.01)]


def test_a_stranger_that_sends_byte_after_byte_has_a_deadline(listener):
    """Bytes do not extend it; an admitted connection has none."""
    slow = socket.create_connection(listener.address)
    member = socket.create_connection(listener.address)
    member.sendall(b"me\n")
    for connection, line in read(listener, 5):
        assert line == b"me"
        listener.admit(connection)
    with contextlib.suppress(OSError):
        for _ in range(60):
            slow.sendall(b"x")
            read(listener, 1)
            time.sleep(0.01)
    member.sendall(b"still\n")

    assert [line for _, line in read(listener)] == [b"still"]
    assert len(listener.connections) == 1


def test_lines_behind_one_that_drops_its_sender_are_not_read(listener):
    """What a stranger says after a wrong secret does not count."""
    stranger = socket.create_connection(listener.address)
    stranger.sendall(b"wrong\n" + json.dumps({"exit_code": 0}).encode() + b"\n")
    heard = []
    for _ in range(10):
        for connection, line in listener.read(0.01):
            heard.append(line)
            listener.drop(connection)

    assert heard == [b"wrong"]


def test_other_users_do_not_reach_a_unix_socket(tmp_path):
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
        assert read(listener) == []
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
