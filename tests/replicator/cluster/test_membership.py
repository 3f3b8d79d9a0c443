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
from replicator import server
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

    with pytest.raises(replicator.ClusterConfigError, match=message):
        membership.join_once(role, other, refuse)


def claimed(num_visible, index, num_needed, addresses, *, is_limited=False):
    """The GPUs that TensorFlow is shown, of those that it sees."""
    shown, gpus = [], [f"gpu{number}" for number in range(num_visible)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if is_limited:
            patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        patch.setattr(membership._tf_workers, "has_started", lambda: False)
        patch.setattr(tf.config, "get_visible_devices", lambda _: gpus)
        patch.setattr(
            tf.config, "set_visible_devices", lambda mine, _: shown.extend(mine)
        )
        membership.claim_gpus(config(index, {"worker": addresses}), num_needed)
    return shown


@given(
    num_workers=st.integers(2, 8),
    num_needed=st.integers(1, 8),
    num_more=st.integers(0, 3),
)
def test_workers_of_a_host_never_share_a_gpu(num_workers, num_needed, num_more):
    """By the local rank: the first workers are on another host."""
    addresses = ["a:1", "a:2", *(f"b:{port + 1}" for port in range(num_workers))]
    num_visible = num_workers * num_needed + num_more
    taken = [
        gpu
        for worker in range(num_workers)
        for gpu in claimed(num_visible, 2 + worker, num_needed, addresses)
    ]

    assert [f"gpu{number}" for number in range(num_workers * num_needed)] == taken


TWO = ["a:1", "a:2"]


def test_gpus_are_divided_where_nobody_says_how_many_or_a_launcher_did():
    """It shows each worker its own, as number 0."""
    assert ["gpu2", "gpu3"] == claimed(4, 1, None, TWO)
    assert ["gpu0"] == claimed(1, 1, 1, TWO, is_limited=True)


@pytest.mark.parametrize(
    ("num_visible", "num_needed", "is_limited"),
    [(1, 1, False), (3, 2, True), (3, 2, False), (1, 2, True)],
)
def test_too_few_gpus_are_an_error(num_visible, num_needed, is_limited):
    """Sharing one silently would halve the throughput, or exhaust its memory."""
    with pytest.raises(
        replicator.DeviceError,
        match=rf"2 workers of one host need {num_needed} GPUs each, but worker 1 there"
        rf" sees {num_visible}; start fewer .*CUDA_VISIBLE_DEVICES",
    ):
        claimed(num_visible, 1, num_needed, TWO, is_limited=is_limited)


def unstarted(kinds, own):
    """The cluster of processes that nobody started; this one has a place among them."""
    ports = [f"localhost:{port}" for port in free_ports(len(kinds))]
    addresses = {}
    for kind, port in zip(kinds, ports, strict=True):
        addresses.setdefault(kind, []).append(port)
    task = {"type": kinds[own], "index": kinds[:own].count(kinds[own])}
    return json.dumps({"cluster": addresses, "task": task}), ports


def create(backend, **options):
    limit = "timeout_sec" if backend == "multi_worker" else "connect_timeout_sec"
    return lambda: replicator.create(backend, **{limit: 0.3}, **options)


def serve():
    server.main([])


TWO_WORKERS, WHOLE = ("worker", "worker"), ("chief", "worker", "ps")
MISSING = {
    "no worker": (
        (create("multi_worker_in_graph"), TWO_WORKERS, 0),
        (
            r"no response from 1 of 1 processes within 0.3 s: worker 1 at {1};.*"
            r"every worker except 0 runs `python -m replicator.server`"
        ),
    ),
    "no other worker": (
        (create("multi_worker"), TWO_WORKERS, 0),
        r"no response from 1 of 2 processes within 0.3 s: worker 1 at {1}",
    ),
    "no server": (
        (create("async"), WHOLE, 0),
        r"no response from 2 of 2 processes within 0.3 s: .*worker 0.*ps 0 at",
    ),
}
MISPLACED = {
    "no client": (
        (create("multi_worker_in_graph"), TWO_WORKERS, 1),
        (
            r"this process is worker 1, but with pattern='in_graph' only worker 0 "
            r"\({0}\) runs .* run `python -m replicator.server` here"
        ),
    ),
    "a client that serves": (
        (serve, TWO_WORKERS, 0),
        (
            r"this process is worker 0 \({0}\), and without a chief "
            r"worker 0 is the client: start your own program here"
        ),
    ),
    "a chief that serves": (
        (serve, WHOLE, 0),
        r"'chief' 0, but only 'worker' and 'ps' run",
    ),
    "no parameter server": (
        (create("async"), ("chief", "worker"), 0),
        r"has 1 'chief', 1 'worker', but no 'ps': .* one p",
    ),
    "no worker of servers": (
        (create("async"), ("chief", "ps"), 0),
        r"has 1 'chief', 1 'ps', but no 'worker'",
    ),
    "a worker that trains": (
        (create("async"), WHOLE, 1),
        r"this process is 'worker' 0, but only the chief runs",
    ),
    "a server that trains": (
        (create("async"), WHOLE, 2),
        r"'ps' 0, but .*run `python -m replicator.serv",
    ),
    "no chief": (
        (create("async"), ("worker", "ps"), 0),
        r"is 'worker' 0, but .* the chief",
    ),
}


@pytest.mark.parametrize("name", [*MISSING, *MISPLACED])
def test_processes_that_are_missing_or_in_another_place_are_named(monkeypatch, name):
    """The wait is bounded, and the message has the command."""
    (call, kinds, own), message = (MISSING | MISPLACED)[name]
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    monkeypatch.setattr(membership._tf_workers, "has_started", lambda: False)
    text, addresses = unstarted(kinds, own)
    monkeypatch.setenv("TF_CONFIG", text)
    error = (
        replicator.UnreachableError
        if name in MISSING
        else replicator.ClusterConfigError
    )

    with pytest.raises(error, match=message.format(*addresses)):
        call()


def test_variables_are_reported_before_tensorflow_loses_them(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", unstarted(TWO_WORKERS, 0)[0])
    kept = tf.Variable(1.0, name="early")

    with pytest.raises(
        replicator.ClusterConfigError,
        match=r"variables exist already .* create the repl",
    ):
        create("multi_worker_in_graph")()
    assert 1.0 == kept.numpy()


@pytest.mark.parametrize(
    ("call", "kinds", "own"),
    [
        (create("multi_worker_in_graph"), TWO_WORKERS, 0),
        (create("multi_worker"), TWO_WORKERS, 0),
        (serve, WHOLE, 2),
    ],
)
def test_a_port_in_use_is_reported_before_tensorflow_starts(
    monkeypatch, call, kinds, own
):
    """Not by an abort of TensorFlow's server."""
    text, addresses = unstarted(kinds, own)
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    monkeypatch.setattr(membership._tf_workers, "has_started", lambda: False)
    port = int(addresses[own].rpartition(":")[2])

    with (
        socket.create_server(("", port)),
        pytest.raises(replicator.PortInUseError, match=rf"port {port} .* is in use"),
    ):
        call()


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
        replicator.DeviceError,
        match=r"need 2 CPU devices on each, but worker 0 .* has 1; .*-cpu-devices 2",
    ):
        membership.replica_devices(WORKERS, 2, 2)
    devices(1, "GPU")
    with pytest.raises(
        replicator.DeviceError,
        match=r"need 2 GPUs on each, but worker 0 .* has 1; .*hide",
    ):
        membership.replica_devices(WORKERS, 4)


@pytest.mark.parametrize(("named", "num_threads"), [("1", 1), ("", 8), ("many", 8)])
def test_threads_that_the_environment_names_count(monkeypatch, named, num_threads):
    """TensorFlow takes them where a program sets none."""
    monkeypatch.setattr(
        tf.config.threading, "get_inter_op_parallelism_threads", lambda: 0
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", named)
    assert membership.describe_threads() == (
        f"this process has {num_threads} inter-op threads and 8 cores"
    )
