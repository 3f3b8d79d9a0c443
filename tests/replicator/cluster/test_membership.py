"""A process joins one cluster, once, in one role, with its share of the GPUs."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from replicator import errors
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


def choose(num_visible, rank, num_workers, *, num_needed=1, is_limited=False):
    return list(
        membership.choose_gpus(
            num_visible,
            num_needed=num_needed,
            local_worker_id=rank,
            num_workers_on_host=num_workers,
            is_limited=is_limited,
        )
    )


@given(
    num_workers=st.integers(1, 8),
    num_needed=st.integers(1, 8),
    num_more=st.integers(0, 3),
)
def test_workers_of_a_host_never_share_a_gpu(num_workers, num_needed, num_more):
    num_visible = num_workers * num_needed + num_more
    taken = [
        gpu
        for rank in range(num_workers)
        for gpu in choose(num_visible, rank, num_workers, num_needed=num_needed)
    ]

    assert list(range(num_workers * num_needed)) == taken


def test_a_launcher_that_divides_them_is_respected():
    """Each worker sees its own GPU only, as number 0."""
    assert [[0], [0]] == [choose(1, rank, 2, is_limited=True) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("num_visible", "num_needed", "is_limited"),
    [(1, 1, False), (3, 2, True), (3, 2, False), (1, 2, True)],
)
def test_too_few_gpus_are_an_error(num_visible, num_needed, is_limited):
    """Sharing one silently would halve the throughput, or exhaust its memory."""
    with pytest.raises(
        errors.DeviceError,
        match=rf"2 workers of one host need {num_needed} GPUs each, but worker 1 there"
        rf" sees {num_visible}; start fewer .*CUDA_VISIBLE_DEVICES",
    ):
        choose(num_visible, 1, 2, num_needed=num_needed, is_limited=is_limited)


@pytest.mark.parametrize(
    ("index", "num_needed", "expected"),
    [(0, 2, ["gpu0", "gpu1"]), (1, 2, ["gpu2", "gpu3"]), (1, None, ["gpu2", "gpu3"])],
)
def test_tensorflow_is_shown_the_own_ones_only(
    monkeypatch, index, num_needed, expected
):
    """By the local rank: worker 3 of the job is worker 1 of its host."""
    shown = []
    monkeypatch.setattr(membership._tf_workers, "has_started", lambda: False)
    monkeypatch.setattr(
        tf.config, "get_visible_devices", lambda _: [f"gpu{i}" for i in range(4)]
    )
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda gpus, _: shown.extend(gpus)
    )
    cluster = ClusterConfig(
        addresses={"worker": ("a:1", "a:2", "b:1", "b:2")},
        kind="worker",
        index=2 + index,
    )
    membership.claim_gpus(cluster, num_needed)

    assert expected == shown
