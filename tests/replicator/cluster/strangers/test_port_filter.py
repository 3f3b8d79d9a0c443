"""Port filters: the kernel drops what does not come from an allowed network."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import pytest

from replicator import errors
from replicator._tf import listen as _tf_listen
from replicator.cluster import port_filter
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.local_cluster import free_ports
from replicator.cluster.network import PRIVATE, Reach

WAIT_SEC = 0.3


def reaches(listener, name, source):
    """Whether a connection from an address of this machine comes through."""
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
    """From 127.0.0.1, 127.0.0.2 and ::1."""
    networks = [ipaddress.ip_network(text) for text in allowed]
    port_filter.attach(dual, port_filter.program(networks))

    assert expected == [
        reaches(dual, "127.0.0.1", "127.0.0.1"),
        reaches(dual, "127.0.0.2", "127.0.0.2"),
        reaches(dual, "::1", "::1"),
    ]


def test_the_filter_for_private_networks_lets_this_machine_in(dual):
    """The longest filter that there is."""
    port_filter.restrict(dual, Reach.PRIVATE)

    assert reaches(dual, "127.0.0.1", "127.0.0.1")
    assert reaches(dual, "::1", "::1")
    assert len(port_filter.program(PRIVATE)) < 256


def own_config(**options):
    """A cluster of this process alone."""
    (port,) = free_ports(1)
    return ClusterConfig(
        addresses={"worker": (f"localhost:{port}",)}, kind="worker", index=0, **options
    )


def test_a_system_without_filters_is_reported(monkeypatch):
    """Nothing listens then; the message says how to do without."""
    monkeypatch.setattr(port_filter.sys, "platform", "darwin")
    port_filter.check_system.cache_clear()

    with pytest.raises(
        errors.ClusterError,
        match=r"listens on all interfaces, .* the filter that restricts it to this "
        r"machine does not work on this system \(darwin has none\); if a firewall "
        r"blocks untrusted hosts, declare it: `--i-trust-this-network`",
    ):
        port_filter.check(own_config())
    assert Reach.ANY is port_filter.check(own_config(i_trust_this_network=True))


def test_filters_that_do_nothing_are_found_out(monkeypatch):
    """The system is tried, not believed."""
    port_filter.check_system.cache_clear()
    monkeypatch.setattr(port_filter, "attach", lambda *_: None)

    with pytest.raises(
        errors.ClusterError, match=r"\(a filter that drops all did not\)"
    ):
        port_filter.check(own_config())


def test_libraries_of_another_make_are_reported(monkeypatch):
    """Where TensorFlow's calls cannot be prepared, it does not listen."""
    import tensorflow as tf  # noqa: F401 (its libraries are looked for)

    monkeypatch.setattr(_tf_listen, "_LIBRARIES", "libother")

    with (
        pytest.raises(errors.ClusterError, match=r"\(no loaded libother\*.so calls"),
        port_filter.guarded(own_config()),
    ):
        pytest.fail("continued")


def test_a_server_that_does_not_come_is_reported():
    """A filter that was put on nothing protects nothing."""
    import tensorflow as tf  # noqa: F401 (its libraries are looked for)

    config = own_config()
    with (
        pytest.raises(
            errors.ClusterError, match=r"\(TensorFlow listened at \[\], not at \d+\)"
        ),
        port_filter.guarded(config),
    ):
        pass


def test_the_filter_is_there_before_tensorflow_listens(monkeypatch):
    """A server of TensorFlow, whose filter lets nobody in."""
    import tensorflow as tf

    config = own_config()
    nobody = port_filter.program([])
    monkeypatch.setattr(
        port_filter, "restrict", lambda opened, _: port_filter.attach(opened, nobody)
    )
    with port_filter.guarded(config):
        tf.distribute.Server(
            {"worker": list(config.addresses["worker"])},
            job_name="worker",
            task_index=0,
        )
    port = int(config.address.rpartition(":")[2])

    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), WAIT_SEC)
