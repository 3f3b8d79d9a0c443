"""What a gang needs of a Ray cluster; a real one is in ``test_ray_launcher``."""

import sys
import types

import pytest

from harness.errors import LaunchError
from harness.launch.ray import cluster as ray_cluster
from harness.launch.ray.client import bundle_of
from harness.launch.ray.cluster import RayHost


def hosts(*sizes):
    """Hosts with so many cores and GPUs."""
    return [
        RayHost(node_id=str(i), address="10.0.0.1", num_cores=cores, num_gpus=gpus)
        for i, (cores, gpus) in enumerate(sizes)
    ]


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    """On this host, and on the others."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(
        LaunchError, match=r"Ray cannot be imported .*pip install 'replicator-harness\["
    ):
        ray_cluster.connect()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"RAY_AUTH_TOKEN": "x"}, True),
        ({"RAY_AUTH_TOKEN_PATH": "other"}, True),
        ({"RAY_AUTH_TOKEN_PATH": "missing"}, False),
        ({}, False),
    ],
)
def test_a_token_is_where_ray_looks_for_it(tmp_path, monkeypatch, given, expected):
    """In a variable, in the file that one names, or below the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "other").write_text("x")

    assert expected == ray_cluster.has_token(given)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x")
    assert (given != {"RAY_AUTH_TOKEN_PATH": "missing"}) == ray_cluster.has_token(given)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {},
            r"not authorized by the Ray cluster at 'a:1': it asks for a token, and th",
        ),
        ({"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}, r"MODE is 'disabled'"),
        ({"RAY_AUTH_TOKEN": "x"}, r"its token is another one .*copy ~/.ray/auth_tok"),
    ],
)
def test_a_cluster_that_asks_for_a_token_is_named(
    tmp_path, monkeypatch, variables, message
):
    """The message says what this process has shown, and where a token is put."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        # Also removes what is set below.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(ray_cluster.ADDRESS_VARIABLE, "a:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    class RayError(Exception):
        pass

    def init(**options):
        raise RayError("Token authentication is enabled, but ...")

    stand_in = types.SimpleNamespace(
        init=init, exceptions=types.SimpleNamespace(RayError=RayError)
    )
    monkeypatch.setitem(sys.modules, "ray", stand_in)

    with pytest.raises(LaunchError, match=message):
        ray_cluster.connect()


def test_a_bundle_is_a_whole_host():
    """So that two gangs never share one; the largest hosts are taken."""
    assert {"CPU": 8} == bundle_of(hosts((8, 0), (8, 0)), 2)
    assert {"CPU": 8, "GPU": 4} == bundle_of(hosts((2, 0), (8, 4), (16, 8)), 2)


@pytest.mark.parametrize("sizes", [[], [(8, 0)], [(8, 0), (0, 0)]])
def test_a_cluster_smaller_than_the_trial_is_refused(sizes):
    """It would wait forever."""
    with pytest.raises(
        LaunchError,
        match=r"a gang on 2 hosts needs as many, but the Ray cluster has [01] with"
        r" CPUs; add hosts with 'ray start",
    ):
        bundle_of(hosts(*sizes), 2)


def test_hosts_that_have_not_joined_are_an_error():
    """A sweep on fewer would be another study."""
    with pytest.raises(
        LaunchError, match=r"has 1 of 2 hosts \(10\.0\.0\.1\); join the others with"
    ):
        ray_cluster.check_number(hosts((8, 0)), 2)


def test_only_living_nodes_count():
    """In the order of their addresses, on whatever host that is asked."""
    nodes = [
        {
            "NodeID": name,
            "NodeManagerAddress": address,
            "Alive": is_alive,
            "Resources": {"CPU": 2.0, "GPU": 1.0},
        }
        for name, address, is_alive in (
            ("b", "10.0.0.2", True),
            ("c", "10.0.0.3", False),
            ("a", "10.0.0.1", True),
        )
    ]
    found = ray_cluster.hosts_of(nodes)

    assert ["a", "b"] == [host.node_id for host in found]
    assert {(2, 1)} == {(host.num_cores, host.num_gpus) for host in found}
