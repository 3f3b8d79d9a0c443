"""The exchange of addresses through the chief, and hostile lines at listening ports."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from concurrent import futures

import pytest
from damaging import strangers
from hypothesis import given
from hypothesis import strategies as st

import replicator
from harness.launch import gang
from replicator.cluster import address_exchange, environment, local_cluster
from replicator.cluster.address_exchange import Registration
from replicator.cluster.local_cluster import MAX_STRANGERS, LineListener

SOON_SEC = 20.0
HOST = "127.0.0.1"


def ranks(rank, size, port, host=HOST):
    """As a launcher says them."""
    environ = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return environment.detect(environ).ranks


POOL = futures.ThreadPoolExecutor(max_workers=8)


def process(mine, timeout_sec=SOON_SEC):
    """Starts what exchanges addresses; a function that says what came of it."""

    def run():
        try:
            return address_exchange.agree(mine, timeout_sec=timeout_sec)
        except replicator.ClusterError as error:
            return error

    started = POOL.submit(run)
    return lambda: started.result(2 * SOON_SEC)


@pytest.fixture
def port():
    return local_cluster.free_ports(1)[0]


def test_a_port_is_drawn_once(monkeypatch):
    """Others that draw, before it is bound, get other ports."""
    monkeypatch.setattr(local_cluster, "_PORTS", (31900, 31999))
    drawn = [*local_cluster.free_ports(20), *local_cluster.free_ports(20)]
    other = (
        "from replicator.cluster import local_cluster;"
        f"local_cluster._PORTS = {local_cluster._PORTS};"
        "print(*local_cluster.free_ports(20))"
    )
    output = subprocess.check_output([sys.executable, "-c", other], text=True)
    assert 60 == len({*drawn, *map(int, output.split())})


def connect(port):
    """A connection to a chief that may not listen yet."""
    deadline = time.monotonic() + SOON_SEC
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return socket.create_connection((HOST, port), 1)
    return pytest.fail("nobody listens")


def test_all_get_the_same_addresses(port):
    """In the order of the ranks, whoever came first; a second call does not ask."""
    processes = []
    for rank in (3, 2, 1, 0):  # others try again until the chief listens
        time.sleep(0.1 * (rank == 0))
        processes.append(process(ranks(rank, 4, port)))
    found = [outcome() for outcome in processes]

    assert 1 == len(set(found))
    assert 4 == len(set(found[0]))
    assert {HOST} == {address.rpartition(":")[0] for address in found[0]}
    assert found[0] == address_exchange.agree(ranks(2, 4, port), timeout_sec=SOON_SEC)


def test_a_single_process_waits_for_nobody(port):
    with socket.create_server((HOST, port)):  # it does not listen, either
        assert 1 == len(address_exchange.agree(ranks(0, 1, port)))


def message(rank, size=2, port=1, seen_at="10.0.0.1"):
    return {"rank": rank, "world_size": size, "port": port, "chief_host": seen_at}


STRANGERS = [
    b"",
    b"GET / HTTP/1.0\r\n\r\n",
    b"x",
    b"[]",
    b"null",
    b'{"rank": "x"}',
    json.dumps(message(True)).encode(),
    json.dumps(message(1, port=0)).encode(),
    json.dumps(message(1, seen_at="x")).encode(),
    json.dumps(message(1, seen_at=5)).encode(),
    b'{"rank": 1, "world_size": 2, "port": 1}',
    b"[" * 100_000,
    b"\xff\xfe",
]


def test_strangers_and_idle_connections_do_not_stop_it(port):
    """Port scanners, health checks, and one that connects and sends nothing."""
    chief = process(ranks(0, 2, port))
    with connect(port):
        for text in STRANGERS:
            with connect(port) as stranger, contextlib.suppress(OSError):
                stranger.sendall(text + b"\n")
        other = process(ranks(1, 2, port))

        assert chief() == other()
        assert 2 == len(set(chief()))


@pytest.mark.parametrize(
    ("everyone", "timeout_sec", "kind", "of_chief", "of_others"),
    [
        (
            [(0, 4), (1, 4)],
            1.5,
            replicator.UnreachableError,
            "no response from 2 of 4 processes within 1.5 s: ranks 2, 3;",
            "no response from 2 of 4 processes",
        ),
        (
            [(0, 3), (1, 3), (1, 3)],
            5.0,
            replicator.ClusterConfigError,
            "two processes have rank 1",
            "stopped: two processes have rank 1",
        ),
        (
            [(0, 2), (1, 3)],
            5.0,
            replicator.ClusterConfigError,
            "has a world size of 3, the chief has 2",
            "",
        ),
    ],
    ids=["ranks that are missing", "a rank that two have", "two jobs at one port"],
)
def test_what_the_chief_finds_wrong_is_an_error_everywhere(
    port, everyone, timeout_sec, kind, of_chief, of_others
):
    chief, *others = [
        process(ranks(rank, size, port), timeout_sec) for rank, size in everyone
    ]
    found = [other() for other in others]

    assert isinstance(chief(), kind)
    assert of_chief in str(chief())
    assert all(isinstance(error, replicator.ClusterError) for error in found)
    assert any(of_others in str(error) for error in found)


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_out_of_range_is_explained(port, rank):
    chief = process(ranks(0, 2, port))
    with connect(port) as other:
        other.sendall(json.dumps(message(rank)).encode() + b"\n")
        found = str(chief())

    assert f"127.0.0.1 has rank {rank}, which must be from 1 to 1" in found


def test_a_chief_that_does_not_answer_is_named(port):
    """It was never started, or has failed: its own output says why."""
    never = process(ranks(1, 2, port), 0.3)()
    with socket.create_server((HOST, port)) as server:
        other = process(ranks(1, 2, port), 5.0)
        server.accept()[0].close()
        closed = other()

    assert f"no response from rank 0 at {HOST}:{port} (MASTER_ADDR:MASTER_PORT)" in str(
        never
    )
    assert "check that it was started" in str(never)
    assert "closed the connection before all 2 processes had registered" in str(closed)


def test_an_address_at_which_no_chief_may_listen_is_refused(port):
    """The servers of a cluster have no authentication."""
    public = process(ranks(0, 2, port, "8.8.8.8"))()
    with socket.create_server(("", port)):
        used = process(ranks(0, 2, port))()

    assert "MASTER_ADDR='8.8.8.8' is public (8.8.8.8)" in str(public)
    assert isinstance(used, replicator.PortInUseError)
    assert f"MASTER_PORT={port} is in use on the host of rank 0" in str(used)


def test_addresses_of_ipv6_have_brackets():
    registered = {1: Registration(host="fd00::2", port=5, chief_host="fd00::1")}
    found = address_exchange.addresses_of(registered, 9)

    assert ("[fd00::1]:9", "[fd00::2]:5") == found


@given(
    num_hosts=st.integers(1, 4),
    num_each=st.integers(1, 4),
    chief_name_is_loopback=st.booleans(),
)
def test_processes_of_a_host_get_the_same_host(
    num_hosts, num_each, chief_name_is_loopback
):
    """However those beside the chief reach it, so that local ranks are right."""
    registered = {}
    for rank in range(1, num_hosts * num_each):
        host = rank // num_each
        beside = host == 0 and chief_name_is_loopback
        registered[rank] = Registration(
            host="127.0.0.1" if beside else f"10.0.0.{host}",
            port=1000 + rank,
            chief_host="127.0.1.1" if beside else "10.0.0.0",
        )
    addresses = address_exchange.addresses_of(registered, 999)
    hosts = [address.rpartition(":")[0] for address in addresses]

    assert num_hosts * num_each == len(set(addresses))
    assert num_hosts == len(set(hosts))
    if num_hosts > 1:
        assert not any(host.startswith("127.") for host in hosts)


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
        mine = ranks(rank, 3, self.address[1])
        return address_exchange.agree(mine, timeout_sec=WAIT_SEC)

    def read(self):
        """A thread does."""

    def works(self):
        found = [self._agree(2), *(other.result(WAIT_SEC) for other in self.others)]
        return len(set(found)) == 1


@pytest.mark.parametrize("kind", [Gang, Exchange])
def test_hostile_lines_and_a_flood_of_connections_end_nothing(kind):
    """Connections cost descriptors of their owner; a genuine process is heard."""
    with (
        contextlib.closing(kind()) as port,
        strangers(port.address, port.read) as num_kept,
    ):
        assert num_kept() <= MAX_STRANGERS + 8
        assert port.works()


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
