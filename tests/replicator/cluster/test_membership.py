"""A process joins one cluster, once, in one role."""

from __future__ import annotations

import pytest

from replicator.cluster import membership
from replicator.cluster.configuration import ClusterConfig
from replicator.errors import ClusterConfigError

ADDRESSES = {"worker": ("localhost:1001", "localhost:1002")}


def config(index: int = 0, **changes: object) -> ClusterConfig:
    return ClusterConfig(
        **{"addresses": ADDRESSES, "kind": "worker", "index": index, **changes}
    )


@pytest.fixture(autouse=True)
def _not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_JOINED", [])


def refuse() -> None:
    raise AssertionError


def test_the_second_replicator_gets_what_the_first_one_made() -> None:
    """Also where it says something else about who can reach the ports."""
    made = membership.join_once("between-graph", config(), object)
    trusting = config(i_trust_this_network=True)

    assert made is membership.join_once("between-graph", trusting, refuse)


@pytest.mark.parametrize(
    ("role", "other"),
    [
        ("between-graph", config(1)),
        ("between-graph", config(addresses={"worker": ("localhost:1001",)})),
        ("the client of servers,", config()),
    ],
)
def test_another_cluster_place_or_role_is_refused(
    role: str, other: ClusterConfig
) -> None:
    membership.join_once("between-graph", config(), object)
    message = (
        r"this process is already between-graph worker 0 of localhost:1001, "
        rf"localhost:1002, and cannot become {role} worker {other.index} of local.*; "
        r"TensorFlow allows one cluster per process: start a new process"
    )

    with pytest.raises(ClusterConfigError, match=message):
        membership.join_once(role, other, refuse)


def test_who_failed_to_join_may_try_again() -> None:
    with pytest.raises(AssertionError):
        membership.join_once("between-graph", config(), refuse)

    assert membership.join_once("between-graph", config(1), lambda: 7) == 7
