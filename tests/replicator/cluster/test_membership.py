"""A process joins one cluster, once, in one role, with its share of the GPUs."""

from __future__ import annotations

import json
import socket
import types

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import replicator
from replicator import errors, server
from replicator.cluster import environment, membership
from replicator.cluster.local_cluster import free_ports

ADDRESSES = {"worker": ("localhost:1001", "localhost:1002")}


def config(index=0, addresses=ADDRESSES, **options):
    task = {"type": "worker", "index": index}
    text = json.dumps({"cluster": addresses, "task": task})
    return environment.detect({"TF_CONFIG": text}).config(**options)


@pytest.fixture(autouse=True)
def _not_joined(monkeypatch):
    """This process, which may have variables of other tests, is in no cluster."""
    monkeypatch.setattr(membership, "_JOINED", [])


def refuse():
    raise AssertionError


def test_the_second_replicator_gets_what_the_first_one_made():
    """Also where it says something else about who can reach the ports."""
    with pytest.raises(AssertionError):
        membership.join_once("between-graph", config(1), refuse)
    made = membership.join_once("between-graph", config(), object)
    trusting = config(i_trust_this_network=True)

    assert made is membership.join_once("between-graph", trusting, refuse)


@pytest.mark.parametrize(
    ("role", "other"),
    [
        ("between-graph", config(1)),
        ("between-graph", config(addresses={"worker": ["localhost:1001"]})),
        ("the client of servers,", config()),
    ],
)
def test_another_cluster_place_or_role_is_refused(role, other):
    membership.join_once("between-graph", config(), object)
    message = (
        r"this process is already between-graph worker 0 of localhost:1001, "
        rf"localhost:1002, and cannot become {role} worker {other.index} of local.*; "
        r"TensorFlow allows one cluster per process: start a new process"
    )

    with pytest.raises(errors.ClusterConfigError, match=message):
        membership.join_once(role, other, refuse)


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
    """A launcher may show each its own only, as number 0."""
    num_visible = num_workers * num_needed + num_more
    taken = [
        gpu
        for rank in range(num_workers)
        for gpu in choose(num_visible, rank, num_workers, num_needed=num_needed)
    ]

    assert list(range(num_workers * num_needed)) == taken
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
    cluster = config(2 + index, {"worker": ["a:1", "a:2", "b:1", "b:2"]})
    membership.claim_gpus(cluster, num_needed)

    assert expected == shown


def unstarted(*kinds, index=0):
    """The cluster of processes that nobody started; this one is the first."""
    ports = [f"localhost:{port}" for port in free_ports(len(kinds))]
    addresses = {}
    for kind, port in zip(kinds, ports, strict=True):
        addresses.setdefault(kind, []).append(port)
    task = {"type": kinds[0], "index": index}
    return json.dumps({"cluster": addresses, "task": task}), ports


def create(backend, **options):
    return lambda: replicator.create(backend, connect_timeout_sec=0.3, **options)


@pytest.mark.parametrize(
    ("call", "kinds", "index", "kind", "message"),
    [
        (
            create("multi_worker_in_graph"),
            ("worker", "worker"),
            0,
            errors.UnreachableError,
            (
                r"no response from 1 of 1 processes within 0.3 s: worker 1 at {1};.*"
                r"every worker except 0 runs `python -m replicator.server`"
            ),
        ),
        (
            create("async"),
            ("chief", "worker", "ps"),
            0,
            errors.UnreachableError,
            r"no response from 2 of 2 processes within 0.3 s: .*worker 0.*ps 0 at",
        ),
        (
            create("multi_worker_in_graph"),
            ("worker", "worker"),
            1,
            errors.ClusterConfigError,
            (
                r"this process is worker 1, but with pattern='in_graph' only worker 0 "
                r"\({0}\) runs .* run `python -m replicator.server` here"
            ),
        ),
        (
            lambda: server.main([]),
            ("worker", "worker"),
            0,
            errors.ClusterConfigError,
            (
                r"this process is worker 0 \({0}\), and without a chief "
                r"worker 0 is the client: start your own program here"
            ),
        ),
    ],
    ids=["no worker", "no server", "no client", "a client that serves"],
)
def test_processes_that_are_missing_or_in_another_place_are_named(
    monkeypatch, call, kinds, index, kind, message
):
    """The wait is bounded, and the message has the command."""
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    text, addresses = unstarted(*kinds, index=index)
    monkeypatch.setenv("TF_CONFIG", text)

    with pytest.raises(kind, match=message.format(*addresses)):
        call()


def test_what_is_in_the_way_of_a_client_is_reported_before_tensorflow_starts(
    monkeypatch,
):
    """Variables, which TensorFlow would lose without a word; a port in use."""
    text, (address, _) = unstarted("worker", "worker")
    monkeypatch.setenv("TF_CONFIG", text)
    kept = tf.Variable(1.0, name="early")

    with pytest.raises(
        errors.ClusterConfigError, match=r"variables exist already .* create the repl"
    ):
        create("multi_worker_in_graph")()
    assert 1.0 == kept.numpy()
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    port = int(address.rpartition(":")[2])
    with (
        socket.create_server(("", port)),
        pytest.raises(errors.PortInUseError, match=rf"port {port} .* is in use"),
    ):
        create("multi_worker_in_graph")()


WORKERS = [f"/job:worker/replica:0/task:{i}" for i in range(2)]


@pytest.fixture
def devices(monkeypatch):
    """Makes TensorFlow list some devices on each of two workers."""

    def pretend(count, kind="CPU"):
        listed = [
            types.SimpleNamespace(name=f"{worker}/device:{kind}:{index}")
            for worker in WORKERS
            for index in range(count)
        ]
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: listed)

    return pretend


def test_parts_of_a_replica_continue_on_the_next_worker(devices):
    """One replica of two parts over two workers; two of them stay on one each."""
    devices(2)

    assert [[f"{w}/device:CPU:0" for w in WORKERS]] == membership.replica_devices(
        WORKERS, 1, 2
    )
    assert [[f"{w}/device:CPU:{i}" for i in range(2)] for w in WORKERS] == (
        membership.replica_devices(WORKERS, 2, 2)
    )


def test_replicas_may_share_a_cpu_but_parts_and_gpus_are_not_shared(devices):
    devices(1)
    assert [[f"{w}/device:CPU:0"] for w in WORKERS for _ in range(2)] == (
        membership.replica_devices(WORKERS, 4)
    )
    with pytest.raises(
        errors.DeviceError,
        match=r"need 2 CPU devices on each, but worker 0 .* has 1; .*-cpu-devices 2",
    ):
        membership.replica_devices(WORKERS, 2, 2)
    devices(1, "GPU")
    with pytest.raises(
        errors.DeviceError, match=r"need 2 GPUs on each, but worker 0 .* has 1; .*hide"
    ):
        membership.replica_devices(WORKERS, 4)
