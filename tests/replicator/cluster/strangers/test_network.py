"""Which addresses a cluster may have, and from where its ports may be reached."""

import json
import re
import socket

import pytest

from replicator import errors, server
from replicator.cluster import environment, port_filter
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.port_filter import Reach

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "inside": ["10.1.2.3"],
    "outside": ["10.1.2.3", "8.8.8.8"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch):
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


def config_of(*names, **options):
    addresses = tuple(f"{name}:{2222 + i}" for i, name in enumerate(names))
    return ClusterConfig(
        addresses={"worker": addresses}, kind="worker", index=0, **options
    )


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
def test_a_public_address_is_refused(name, found):
    with pytest.raises(
        errors.ClusterConfigError,
        match=rf"^address '{re.escape(name)}:2223' of the cluster is public "
        rf"\({found}\), but every host that can reach the port .* can run any "
        r"operation there, such as writing files; use the private addresses .* "
        r"declare it in every process: "
        r"`--i-trust-this-network` for replicator.server, "
        r"cluster=environment.detect\(\).config\(i_trust_this_network=True\) for a "
        r"program$",
    ):
        port_filter.reach_of(config_of("localhost", name))


def test_a_trusted_network_may_be_public():
    config = config_of("8.8.8.8", i_trust_this_network=True)

    assert Reach.ANY is port_filter.reach_of(config)


def test_programs_say_it_with_the_cluster():
    cluster = {"worker": ["8.8.8.8:1"]}
    environ = {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": 0}}
        )
    }
    said = environment.detect(environ).config(i_trust_this_network=True)
    not_said = environment.detect(environ).config()

    assert said.i_trust_this_network
    assert not not_said.i_trust_this_network


def test_a_server_at_a_public_address_does_not_start(monkeypatch):
    """Before TensorFlow is imported; with the flag it comes as far as its port."""
    cluster = {"chief": ["localhost:1"], "worker": ["8.8.8.8:2"]}
    own = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": own}))

    def refuse(address):
        raise errors.PortInUseError(f"came as far as {address}")

    monkeypatch.setattr(server, "check_port_is_free", refuse)

    with pytest.raises(errors.ClusterConfigError, match=r"'8.8.8.8:2' .* is public"):
        server.main([])
    with pytest.raises(errors.PortInUseError, match=r"came as far as 8.8.8.8:2"):
        server.main(["--i-trust-this-network"])
