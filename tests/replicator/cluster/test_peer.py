"""Who is at the other end: a TensorFlow server, the same as before, or a stranger."""

import contextlib
import socket
from concurrent import futures

import damaging
import grpc
import pytest
import tensorflow as tf

from replicator import errors
from replicator import server as server_lib
from replicator.cluster import liveness
from replicator.cluster.local_cluster import free_ports
from replicator.server import ClientWatch


@pytest.fixture(scope="module")
def server():
    (port,) = free_ports(1)
    address = f"localhost:{port}"
    kept = tf.distribute.Server(
        {"worker": [address]}, job_name="worker", task_index=0, protocol="grpc"
    )
    yield address
    del kept


@pytest.fixture
def at():
    """Starts a stranger; returns its address."""
    with contextlib.ExitStack() as started:
        yield lambda how: started.enter_context(
            damaging.listening(free_ports(1)[0], how)
        )


def identity_of(address, timeout_sec=30.0):
    with contextlib.closing(liveness.Link(address, 2.0)) as link:
        assert link.responds(timeout_sec)
        return link.identity(timeout_sec)


def test_a_server_says_each_time_who_it_is(server):
    """Its incarnations are the same on every connection."""
    assert identity_of(server)
    assert identity_of(server) == identity_of(server)
    assert liveness.answers(server, 30.0)


@pytest.mark.parametrize("how", ["silent", "garbage", "web server"])
def test_a_stranger_gives_no_sign_of_life(at, how):
    address = at(how)

    assert not liveness.answers(address, 0.3)
    if how != "silent":
        with pytest.raises(ConnectionError, match=r"^does not speak HTTP/2$"):
            identity_of(address)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"\xff" * 30, b"\x0a\x05ab", b"\x0a\x02\xff\xff", b"\x0a\x00"],
)
def test_a_server_that_does_not_say_who_it_is_is_none_of_tensorflow(answer):
    """Another one of gRPC, without that call or with another answer."""
    call = grpc.unary_unary_rpc_method_handler(lambda *_: answer)
    status = {"GetStatus": call} if answer is not None else {}
    with futures.ThreadPoolExecutor(1) as pool:
        other = grpc.server(pool)
        other.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tensorflow.WorkerService", status)]
        )
        address = f"localhost:{other.add_insecure_port('localhost:0')}"
        other.start()
        with pytest.raises(ConnectionError, match=r"^is not a TensorFlow server$"):
            identity_of(address)
        other.stop(None).wait()


def _lose(peer):
    peer._link._socket.shutdown(socket.SHUT_RDWR)
    peer.wait_until_lost()


@pytest.mark.parametrize("how", ["nobody", "silent", "garbage", "web server"])
def test_a_client_is_not_left_for_a_lost_connection(server, at, how, monkeypatch):
    """It is asked who it is; nobody else is taken for it."""
    watched = ClientWatch("worker 0", server)
    watched.wait_for(30.0)
    monkeypatch.setattr(server_lib, "CLOSED_SEC", 0.3)
    peer = watched._peer
    for _ in range(2):
        assert not peer.has_ended()
        _lose(peer)
    assert not peer.has_ended()
    monkeypatch.setattr(liveness, "_ANSWER_SEC", 0.3)
    peer._address = f"localhost:{free_ports(1)[0]}" if how == "nobody" else at(how)
    peer._link._socket.shutdown(socket.SHUT_RDWR)

    other = "" if how == "nobody" else ", and another process listens at its address"
    assert f"the client has exited{other}" == watched.wait_until_left()


def test_a_client_that_was_started_again_is_another_one(server):
    """Its incarnations are new."""
    watched = ClientWatch("worker 0", server)
    _lose(watched._peer)
    watched._peer._identity = frozenset({1})

    assert watched._peer.has_ended()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("silent", r" \(another process listens at its address; it does not respond\)"),
        ("garbage", r" \(another process .*; it does not speak HTTP/2\)"),
        ("nobody", ""),
    ],
)
def test_a_client_that_does_not_start_is_named(at, how, what):
    address = f"localhost:{free_ports(1)[0]}" if how == "nobody" else at(how)
    watched = ClientWatch("worker 0 (somewhere)", address)

    with pytest.raises(
        errors.UnreachableError,
        match=r"the client, worker 0 \(somewhere\), did not start within 0.5 s"
        rf"{what}; start the training",
    ):
        watched.wait_for(0.5)
    assert (how == "nobody") is watched._peer.has_ended()  # others may be slow


def test_hanging_up_closes_the_connections_to_one_address(at):
    """Those to others stay."""
    addresses = [at("silent"), at("silent")]
    links = [liveness.Link(address, 2.0) for address in addresses]

    liveness.close_connections(addresses[0])

    assert [False, True] == [link.is_open() for link in links]
    links[1].close()


def test_hanging_up_closes_connections_of_either_family():
    """gRPC connects by IPv6 to addresses of IPv4 as well."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        for family, host in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):
            with socket.socket(family) as client:
                client.connect((host, port))
                accepted, _ = server.accept()
                with accepted:
                    accepted.settimeout(20)
                    liveness.close_connections(f"localhost:{port}")
                    assert b"" == accepted.recv(1), family
