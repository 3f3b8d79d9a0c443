"""Who is at the other end: a TensorFlow server, the same as before, or a stranger."""

import contextlib
import time

import pytest

from replicator import errors
from replicator import server as server_lib
from replicator.cluster import liveness
from replicator.cluster.local_cluster import free_ports
from replicator.server import ClientWatch


@pytest.fixture(scope="module")
def server():
    import tensorflow as tf

    (port,) = free_ports(1)
    address = f"localhost:{port}"
    kept = tf.distribute.Server(
        {"worker": [address]}, job_name="worker", task_index=0, protocol="grpc"
    )
    yield address
    del kept


@pytest.fixture
def at(stranger):
    return lambda how: stranger(free_ports(1)[0], how)


def test_a_server_says_each_time_who_it_is(server):
    """Its incarnations are the same on every connection."""
    identities = []
    for _ in range(2):
        with contextlib.closing(liveness.Link(server, 2.0)) as link:
            identities.append(link.wait_for_identity(30.0))

    assert identities[0]
    assert identities[0] == identities[1]


def test_a_server_gives_a_sign_of_life(server):
    assert liveness.answers(server, 30.0)


@pytest.mark.parametrize("how", ["silent", "garbage", "web server"])
def test_a_stranger_gives_no_sign_of_life(at, how):
    assert not liveness.answers(at(how), 0.3)


@pytest.mark.parametrize("how", ["garbage", "web server"])
def test_what_is_no_server_is_found_out(at, how):
    with (
        contextlib.closing(liveness.Link(at(how), 2.0)) as link,
        pytest.raises(liveness.NotAServerError, match=r"^does not speak HTTP/2$"),
    ):
        link.wait_for_identity(10.0)


@pytest.mark.parametrize(
    "answer", [b"", b"\xff" * 30, b"\x0a\x05ab", b"\x0a\x02\xff\xff", b"\x0a\x00"]
)
def test_a_server_that_does_not_say_who_it_is_is_none_of_tensorflow(stranger, answer):
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    data = bytes([0, 0, 5 + len(answer), 0, 1, 0, 0, 0, 1, *bytes(5), *answer])
    with (
        contextlib.closing(
            liveness.Link(stranger(free_ports(1)[0], settings + data), 2.0)
        ) as link,
        pytest.raises(liveness.NotAServerError, match=r"^is not a TensorFlow server$"),
    ):
        link.wait_for_identity(10.0)


@pytest.mark.parametrize("how", ["silent", "garbage"])
def test_a_peer_that_was_met_is_known_from_a_stranger(server, at, how, monkeypatch):
    """It has not ended while it is there, and has when another answers in its place."""
    known = liveness.Peer(server)

    assert not known.has_ended()
    known._link.close()  # a connection can be lost without the process
    known._link = None
    assert not known.has_ended()
    known._link.close()
    known._link = None
    known._address = at(how)
    monkeypatch.setattr(liveness, "_ANSWER_SEC", 0.1)
    assert known.has_ended()


def test_a_peer_that_was_not_met_may_be_slow(at, monkeypatch):
    """Who only accepts may be a process that is stopped."""
    monkeypatch.setattr(liveness, "_ANSWER_SEC", 0.1)

    assert not liveness.Peer(at("silent")).has_ended()


def test_a_client_is_not_left_for_a_lost_connection(server):
    """It is asked who it is, and is the same."""
    watched = ClientWatch("worker 0", server)
    watched.wait_for(30.0)
    watched._link.close()

    assert "" == watched._find_again()


@pytest.mark.parametrize("how", ["silent", "garbage", "web server"])
def test_a_stranger_is_not_taken_for_the_client(server, at, how, monkeypatch):
    """It is given as long as a closed port."""
    watched = ClientWatch("worker 0", server)
    watched.wait_for(30.0)
    watched._address = at(how)
    monkeypatch.setattr(server_lib, "CLOSED_SEC", 0.3)
    start = time.monotonic()

    assert (
        "the client has exited, and another process listens at its address"
        == watched._find_again()
    )
    assert time.monotonic() - start < server_lib.NO_RESPONSE_SEC


def test_another_server_is_not_taken_for_the_client(server):
    """Such as a client that was started again: it is not the one that was served."""
    watched = ClientWatch("worker 0", server)
    watched.wait_for(30.0)
    watched._identity = frozenset({1})

    assert watched._find_again().endswith("another process listens at its address")


@pytest.mark.parametrize(
    ("how", "what"),
    [("silent", "does not respond"), ("garbage", "does not speak HTTP/2")],
)
def test_a_stranger_in_the_place_of_a_client_is_reported(at, how, what):
    watched = ClientWatch("worker 0 (somewhere)", at(how))

    with pytest.raises(
        errors.UnreachableError,
        match=r"the client, worker 0 \(somewhere\), did not start within 0.5 s "
        rf"\(another process listens at its address; it {what}\); start the training",
    ):
        watched.wait_for(0.5)
