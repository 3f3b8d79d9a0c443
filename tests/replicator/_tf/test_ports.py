"""Ports: what the kernel drops, and that TensorFlow cannot listen without a filter."""

import contextlib
import ipaddress
import os
import socket

import pytest
import tensorflow as tf

from replicator._tf.ports import listen
from replicator.cluster.local_cluster import free_ports
from replicator.cluster.port_filter import PRIVATE

WAIT_SEC = 0.3


def reaches(listener, name, source):
    target = (name, listener.getsockname()[1])
    with contextlib.suppress(TimeoutError):
        socket.create_connection(target, WAIT_SEC, source_address=(source, 0)).close()
        return True
    return False


@pytest.fixture
def dual():
    """A socket that listens as TensorFlow's does, for IPv4 and IPv6."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(
        ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as listener:
        yield listener


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (["127.0.0.1/32"], [True, False, False]),
        (["127.0.0.0/8"], [True, True, False]),
        (["10.0.0.0/8", "127.0.0.2/31"], [False, True, False]),
        (["::1/128"], [False, False, True]),
        (["::/64", "127.0.0.1/32"], [True, False, True]),
        (["fd00::/8"], [False, False, False]),
        (["0.0.0.0/0", "::/0"], [True, True, True]),
    ],
)
def test_only_allowed_networks_come_through(dual, allowed, expected):
    networks = [ipaddress.ip_network(text) for text in allowed]
    listen.attach(dual, listen.program(networks))

    assert expected == [
        reaches(dual, "127.0.0.1", "127.0.0.1"),
        reaches(dual, "127.0.0.2", "127.0.0.2"),
        reaches(dual, "::1", "::1"),
    ]


def test_the_filter_for_private_networks_lets_this_machine_in(dual):
    program = listen.program(PRIVATE)
    listen.attach(dual, program)

    assert reaches(dual, "127.0.0.1", "127.0.0.1")
    assert reaches(dual, "::1", "::1")
    assert len(program) < 256


def test_tensorflow_calls_listen_through_its_tables():
    """Fails where a new TensorFlow does not: its ports could not be closed in time."""
    libraries = listen._libraries()

    assert libraries, "no library of TensorFlow is loaded under a known name"
    assert listen._slots()


def test_the_filter_is_there_before_tensorflow_listens():
    """A server whose filter lets nobody in: nobody ever came in."""
    (port,) = free_ports(1)
    listened = []

    def close(descriptor):
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            listened.append(opened.getsockname()[1])
            listen.attach(opened, listen.program([]))

    with listen.before_listen(close):
        tf.distribute.Server(
            {"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0
        )

    assert [port] == listened
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), WAIT_SEC)


def test_tensorflow_does_not_listen_on_what_cannot_be_prepared():
    """It reports the failure, and its calls are as before afterwards."""
    (port,) = free_ports(1)

    def fail(_descriptor):
        raise OSError("no filter")

    def start():
        return tf.distribute.Server(
            {"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0
        )

    with listen.before_listen(fail), pytest.raises(tf.errors.UnknownError):
        start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), WAIT_SEC)
    kept = start()
    socket.create_connection(("127.0.0.1", port), WAIT_SEC).close()
    del kept
