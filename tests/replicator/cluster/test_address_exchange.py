"""The exchange of addresses through the chief: all agree, or all learn why not."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from replicator import errors
from replicator.cluster import local_cluster
from replicator.cluster.environment import address_exchange
from replicator.cluster.environment.address_exchange import Ranks

SOON_SEC = 20.0
AT_ONCE_SEC = 0.5


def ranks(rank, size, port, host="127.0.0.1"):
    return Ranks(rank=rank, world_size=size, chief_host=host, chief_port=port)


def exchange(everyone, timeout_sec=SOON_SEC):
    """Runs processes as threads; returns what each got, an exception included."""
    found = [None] * len(everyone)

    def run(place, mine):
        try:
            found[place] = address_exchange.agree.__wrapped__(
                mine, timeout_sec=timeout_sec
            )
        except errors.ClusterError as error:
            found[place] = error

    threads = [
        threading.Thread(target=run, args=(place, mine))
        for place, mine in enumerate(everyone)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON_SEC)
        assert not thread.is_alive()
    return found


@pytest.fixture
def port():
    return local_cluster.free_ports(1)[0]


def test_all_get_the_same_addresses(port):
    """In the order of the ranks, whoever came first; every port differs."""
    order = [3, 0, 2, 1]
    found = exchange([ranks(rank, 4, port) for rank in order])

    assert 1 == len(set(found))
    assert 4 == len(set(found[0]))
    assert {"127.0.0.1"} == {address.rpartition(":")[0] for address in found[0]}


def test_the_chief_may_be_the_last(port):
    """Others try again until it listens."""
    found = [None]

    def late():
        time.sleep(0.5)
        found[0] = exchange([ranks(0, 2, port)])[0]

    chief = threading.Thread(target=late)
    chief.start()
    (other,) = exchange([ranks(1, 2, port)])
    chief.join()

    assert other == found[0]


def test_a_single_process_waits_for_nobody(port):
    """It has one address, and does not listen for others."""
    start = time.monotonic()
    (found,) = exchange([ranks(0, 1, port)])

    assert 1 == len(found)
    assert time.monotonic() - start < SOON_SEC / 2


def test_strangers_and_idle_connections_do_not_stop_it(port):
    """A port scanner, a health check, and one that connects and sends nothing."""
    stop = threading.Event()

    def send(text):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 1) as stranger,
        ):
            stranger.sendall(text)

    def disturb():
        while not opened and not stop.is_set():
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), 1))
            time.sleep(0.01)
        for text in (b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b'{"rank": "x"}\n'):
            send(text)

    opened = []
    stranger = threading.Thread(target=disturb)
    chief: list = []
    first = threading.Thread(target=lambda: chief.extend(exchange([ranks(0, 2, port)])))
    stranger.start()
    first.start()
    stranger.join(SOON_SEC)
    stop.set()
    (other,) = exchange([ranks(1, 2, port)])
    first.join()

    assert opened
    assert [other] == chief


def test_the_chief_names_the_ranks_that_are_missing(port):
    """Within the time, and the others learn it too."""
    start = time.monotonic()
    chief, other = exchange([ranks(0, 4, port), ranks(1, 4, port)], 2.0)

    assert "no response from 2 of 4 processes within 2 s: ranks 2, 3;" in str(chief)
    assert isinstance(chief, errors.UnreachableError)
    assert "no response from 2 of 4 processes" in str(other)
    assert time.monotonic() - start < SOON_SEC


def test_a_chief_that_never_comes_is_named(port):
    (error,) = exchange([ranks(1, 2, port)], AT_ONCE_SEC)

    assert (
        f"no response from rank 0 at 127.0.0.1:{port} (MASTER_ADDR:MASTER_PORT)"
        in str(error)
    )
    assert "check that it was started" in str(error)


def test_a_rank_that_two_processes_have_is_an_error_everywhere(port):
    """Nobody trains with a wrong cluster."""
    everyone = [ranks(0, 3, port), ranks(1, 3, port), ranks(1, 3, port)]
    found = exchange(everyone, 5.0)

    assert all(isinstance(error, errors.ClusterConfigError) for error in found[:1])
    assert "two processes have rank 1" in str(found[0])
    assert any("stopped: two processes have rank 1" in str(e) for e in found[1:])


def test_two_jobs_at_one_port_are_an_error(port):
    """They are recognized by their sizes."""
    chief, other = exchange([ranks(0, 2, port), ranks(1, 3, port)], 5.0)

    assert "has a world size of 3, the chief has 2" in str(chief)
    assert isinstance(other, errors.ClusterError)


def test_a_port_of_the_chief_in_use_is_named(port):
    with socket.create_server(("", port)):
        (error,) = exchange([ranks(0, 2, port)], AT_ONCE_SEC)

    assert isinstance(error, errors.PortInUseError)
    assert f"MASTER_PORT={port} is in use on the host of rank 0" in str(error)


def test_a_public_chief_is_refused(port):
    """The servers of a cluster have no authentication."""
    (error,) = exchange([ranks(0, 2, port, "8.8.8.8")], AT_ONCE_SEC)

    assert "MASTER_ADDR='8.8.8.8' is public (8.8.8.8)" in str(error)


def test_a_chief_that_closes_the_connection_is_named(port):
    """It has failed; its own output says why."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def close():
            server.accept()[0].close()

        closing = threading.Thread(target=close)
        closing.start()
        (error,) = exchange([ranks(1, 2, port)], 5.0)
        closing.join()

    assert "closed the connection before all 2 processes had registered" in str(error)


def test_the_exchange_happens_once_per_process(port):
    """A second replicator of a process gets the same addresses without the others."""
    mine = ranks(0, 1, port)

    assert address_exchange.agree(mine) == address_exchange.agree(mine)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[]",
        b"null",
        b'{"rank": true, "world_size": 2, "port": 1, "chief_host": "10.0.0.1"}',
        b'{"rank": 1, "world_size": 2, "port": 0, "chief_host": "10.0.0.1"}',
        b'{"rank": 1, "world_size": 2, "port": 1, "chief_host": "x"}',
        b'{"rank": 1, "world_size": 2, "port": 1, "chief_host": 5}',
        b'{"rank": 1, "world_size": 2, "port": 1}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_other_messages_are_those_of_strangers(line):
    """They are ignored: anybody in the network may connect."""
    assert address_exchange.parse_registration(line, "10.0.0.2", 2) is None


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_out_of_range_is_explained(rank):
    line = json.dumps(
        {"rank": rank, "world_size": 2, "port": 1, "chief_host": "10.0.0.1"}
    ).encode()

    with pytest.raises(
        errors.ClusterConfigError,
        match=rf"a process at 10\.0\.0\.2 has rank {rank}, which must be from 1 to 1",
    ):
        address_exchange.parse_registration(line, "10.0.0.2", 2)
