"""What a gang needs of a Ray cluster; a real one is in ``test_ray_launcher``."""

from __future__ import annotations

import sys

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
