"""Which addresses a cluster may have, and from where its ports may be reached."""

import json
import re
import socket

import pytest
import tensorflow as tf  # noqa: F401 (its libraries are looked for)

import replicator
from replicator import server
from replicator.cluster import environment, port_filter
from replicator.cluster.local_cluster import free_ports
from replicator.cluster.port_filter import Reach

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "inside": ["10.1.2.3"],
    "outside": ["10.1.2.3", "8.8.8.8"],
}


def tf_config(addresses):
    own = {"type": "worker", "index": 0}
    return json.dumps({"cluster": addresses, "task": own})


def config_of(*names, port=2222, **options):
    addresses = [f"{name}:{port + i}" for i, name in enumerate(names)]
    environ = {"TF_CONFIG": tf_config({"worker": addresses})}
    return environment.detect(environ).config(**options)


@pytest.fixture
def _names(monkeypatch):
    """Names that mean the same on every machine; numbers mean themselves."""

    def resolve(name, port, **_options):
        if name[0].isdigit() or ":" in name:
            found = [name]
        elif name in NAMES:
            found = NAMES[name]
        else:
            raise socket.gaierror("Name or service not known")
        return [(None, None, None, "", (address, port)) for address in found]

    monkeypatch.setattr(port_filter.socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize(
    ("names", "reach"),
    [
        (["localhost", "127.0.0.1", "[::1]"], Reach.MACHINE),
        (["localhost", "10.0.0.2"], Reach.PRIVATE),
        (["172.31.0.1", "192.168.3.4", "169.254.1.1"], Reach.PRIVATE),
        (["100.64.0.9", "[fd00::1]", "[fe80::1%eth0]"], Reach.PRIVATE),
        (["inside"], Reach.PRIVATE),
        (["worker-1.not-yet-known"], Reach.PRIVATE),
    ],
)
def test_a_cluster_is_reached_from_as_near_as_its_addresses(names, reach):
    """From this machine where all addresses are loopback; unknown names are private."""
    assert reach is port_filter.reach_of(config_of(*names))


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("8.8.8.8", "8.8.8.8"),
        ("172.32.0.1", "172.32.0.1"),
        ("[2001:4860:4860::8888]", "2001:4860:4860::8888"),
        ("[::ffff:8.8.8.8]", "8.8.8.8"),
        ("outside", "8.8.8.8"),
    ],
)
def test_a_public_address_is_refused_unless_it_is_trusted(name, found):
    with pytest.raises(
        replicator.ClusterConfigError,
        match=rf"^address '{re.escape(name)}:2223' of the cluster is public "
        rf"\({found}\), but every host that can reach the port .* can run any "
        r"operation there, such as writing files; use the private addresses .* "
        r"declare it in every process: "
        r"`--i-trust-this-network` for replicator.server, "
        r"cluster=environment.detect\(\).config\(i_trust_this_network=True\) for a "
        r"program$",
    ):
        port_filter.reach_of(config_of("localhost", name))
    trusting = config_of("localhost", name, i_trust_this_network=True)
    assert Reach.ANY is port_filter.reach_of(trusting)


@pytest.mark.usefixtures("_names")
def test_a_server_at_a_public_address_does_not_start(monkeypatch):
    """Before TensorFlow is imported; with the flag it comes as far as its port."""
    cluster = {"chief": ["localhost:1"], "worker": ["8.8.8.8:2"]}
    monkeypatch.setenv("TF_CONFIG", tf_config(cluster))

    def refuse(address):
        raise replicator.PortInUseError(f"came as far as {address}")

    monkeypatch.setattr(server, "check_port_is_free", refuse)

    with pytest.raises(
        replicator.ClusterConfigError, match=r"'8.8.8.8:2' .* is public"
    ):
        server.main([])
    with pytest.raises(replicator.PortInUseError, match=r"came as far as 8.8.8.8:2"):
        server.main(["--i-trust-this-network"])


def own_config(**options):
    return config_of("localhost", port=free_ports(1)[0], **options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "sys.platform",
            "darwin",
            (
                r"listens on all interfaces, .* the filter that restricts it to this "
                r"machine does not work on this system \(darwin has none\); if a fire"
                r"wall blocks untrusted hosts, declare it: `--i-trust-this-network`"
            ),
        ),
        ("attach", lambda *_: None, r"\(a filter that drops all did not\)"),
    ],
    ids=["no filters", "filters that do nothing"],
)
def test_a_system_without_filters_is_found_out(monkeypatch, name, value, message):
    """It is tried, not believed. Nothing listens then."""
    monkeypatch.setattr(f"{port_filter.__name__}.{name}", value)
    port_filter.try_filters.cache_clear()

    with pytest.raises(replicator.ClusterError, match=message):
        port_filter.check(own_config())
    assert Reach.ANY is port_filter.check(own_config(i_trust_this_network=True))
    monkeypatch.undo()
    port_filter.try_filters.cache_clear()


@pytest.mark.parametrize(
    ("libraries", "message"),
    [
        ("libother", r"\(no loaded libother\*.so calls"),
        (None, r"\(TensorFlow listened at \[\], not at \d+\)"),
    ],
    ids=["libraries of another make", "a server that does not come"],
)
def test_a_server_that_cannot_be_filtered_is_reported(monkeypatch, libraries, message):
    """A filter that was put on nothing protects nothing."""
    if libraries:
        monkeypatch.setattr(port_filter, "_LIBRARIES", libraries)

    with (
        pytest.raises(replicator.ClusterError, match=message),
        port_filter.guarded(own_config()),
    ):
        assert libraries is None
