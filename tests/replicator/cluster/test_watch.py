"""Failure detection: one watch per process, and who is at the other end."""

import contextlib
import json
import socket
import threading
import time
from concurrent import futures

import damaging
import grpc
import pytest
import tensorflow as tf
from damaging import until

import replicator
from replicator import WorkerLostError
from replicator import server as server_lib
from replicator.cluster import environment, liveness
from replicator.cluster import workers as workers_lib
from replicator.cluster.liveness import Deadline, FailureDetector, WorkerWatch
from replicator.cluster.local_cluster import free_ports

SERVER = "/job:worker/replica:0/task:1"
NAMES = {SERVER: ("worker 1 (localhost:1)", "localhost:1")}


@pytest.fixture
def silent(monkeypatch):
    """A server that gives no response from now on, until the event is set."""
    answering = threading.Event()
    monkeypatch.setattr(liveness, "answers", lambda *_: answering.is_set())
    monkeypatch.setattr(liveness, "close_connections", lambda _: None)
    monkeypatch.setattr(liveness, "_POLL_SEC", 0.01)
    yield answering
    answering.set()


def test_each_replicator_has_its_own_timeout(silent):
    """A second one with a long timeout changes nothing for the first."""
    watch = WorkerWatch(NAMES)
    short, long = FailureDetector(watch, 0.2), FailureDetector(watch, 3600.0)

    with short.guard():
        until(lambda: watch.lost)
    assert not long.num_waiting
    with (
        pytest.raises(
            WorkerLostError,
            match=r"^no response from worker 1 \(localhost:1\) for 0\.2 s; restart",
        ),
        short.guard(),
    ):
        pass


def test_the_one_that_waits_decides_or_the_longest(silent):
    """Reading a variable outside a step ends too, but not early."""
    watch = WorkerWatch(NAMES)
    assert watch.timeout_sec() == liveness.DETECTION_TIMEOUT_SEC
    short, long = FailureDetector(watch, 0.01), FailureDetector(watch, 3600.0)

    with long.guard():
        assert watch.timeout_sec() == 3600.0
        time.sleep(0.3)  # thirty times the short timeout
        assert {} == watch.lost
        with short.guard():
            assert watch.timeout_sec() == 0.01
    assert watch.timeout_sec() == 3600.0
    del long
    assert watch.timeout_sec() == 0.01


def test_a_server_that_responds_again_in_time_is_not_lost(silent):
    """The time without a response is counted from the last response."""
    silent.set()
    watch = WorkerWatch(NAMES)
    detector = FailureDetector(watch, 2.0)

    with detector.guard():
        silent.clear()
        time.sleep(0.3)
        silent.set()
        time.sleep(0.3)
    assert {} == watch.lost


def waited(deadline, expired, sec):
    with deadline.limit(sec):
        return expired.wait(60.0)


def test_a_block_that_is_too_long_expires_once():
    """From another thread, not before its limit, and again for the next block.

    The thread sleeps until the end of the longer limit before it, or is woken.
    """
    expired = threading.Event()
    threads = []

    def expire():
        threads.append(threading.current_thread().name)
        expired.set()

    deadline = Deadline(expire)
    with deadline.limit(600.0):
        time.sleep(0.05)
    start = time.monotonic()

    assert waited(deadline, expired, 0.2)
    assert 0.2 <= time.monotonic() - start < 50.0
    expired.clear()
    assert waited(deadline, expired, 0.1)
    assert ["replicator_deadline"] * 2 == threads


def test_blocks_in_time_do_not_expire():
    """However many there are; one thread watches all of them."""
    expired = threading.Event()
    deadline = Deadline(expired.set)
    before = threading.active_count()
    start = time.monotonic()
    longest_sec = 0.0
    while time.monotonic() - start < 0.4:
        entered = time.monotonic()
        with deadline.limit(0.2):
            time.sleep(0.001)
        longest_sec = max(longest_sec, time.monotonic() - entered)

    # On a machine that stands still, a block may not be in time.
    assert not expired.wait(0.3) or longest_sec >= 0.2
    assert before + 1 >= threading.active_count()


ME = "worker 0 (localhost:1000)"
DERIVED = {workers_lib._tf_workers.DERIVED: b""}


class FakeState:
    """Worker 0 of three, with a choice of what is wrong with the others."""

    def __init__(self, faults, *, has_leader=True):
        cluster = {"worker": [f"localhost:{1000 + i}" for i in range(3)]}
        text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
        self.config = environment.detect({"TF_CONFIG": text}).config()
        self.others = [1, 2]
        self.doing = "step 'train'"
        self._faults = faults
        self._has_leader = has_leader

    def report(self):
        return self._has_leader

    def fault_of(self, worker):
        return self._faults.get(worker, "")


@pytest.fixture
def reports(monkeypatch):
    """What workers report that they were doing; those who are not in it are silent."""
    found = {}

    def get_value(key, timeout_sec):
        assert 0 < timeout_sec <= workers_lib._GRACE_SEC
        worker = int(key.rpartition("/")[2])
        if worker not in found:
            raise tf.errors.DeadlineExceededError(None, None, "silent")
        return found[worker]

    monkeypatch.setattr(workers_lib._tf_workers, "get_value", get_value)
    return found


@pytest.mark.parametrize(
    ("faults", "said", "expected"),
    [
        ({2: "has exited"}, {1: "step 'train'"}, r"worker 2 \(localhost:1002\) has e"),
        # One that reported and then ended did so because of the other.
        (
            {1: "has exited", 2: "has exited"},
            {1: "step 'train'"},
            r": worker 2 \(localhost:1002\) has exited; a sync",
        ),
        ({}, {1: "step 'train'"}, r"worker 2 .* is alive, but timed out"),
        ({}, {1: "step 'train'", 2: "saving"}, r": worker 2 .* was at saving; a syn"),
        (
            {},
            {1: "step 'train'", 2: "failed in step 'train': no memory"},
            r": worker 2 \(localhost:1002\) failed in step 'train': no memory; a syn",
        ),
        ({}, {1: "step 'train'", 2: "step 'train'"}, r": RecvBuf failed; a synch"),
    ],
)
def test_the_worker_that_began_it_is_named(reports, faults, said, expected):
    """Not those that ended after it, or wait for it as this one does."""
    reports.update(said)

    error = workers_lib.diagnose(FakeState(faults), "RecvBuf failed\nmore", 30.0)

    with pytest.raises(type(error), match=expected):
        raise error
    assert ME in str(error)
    assert "timeout_sec, which is 30 s" in str(error)


def test_without_the_coordination_service_connections_tell(reports):
    """Worker 0 hosts it; when that is gone, nobody reports."""
    reports[1] = "step 'train'"
    state = FakeState({1: "has exited"}, has_leader=False)

    error = workers_lib.diagnose(state, "no more", 30.0)

    assert "worker 1 (localhost:1001) has exited" in str(error)
    assert "worker 2" not in str(error)


@pytest.mark.parametrize(
    ("error", "is_others"),
    [
        (tf.errors.AbortedError(None, None, "worker 1 failed"), True),
        (tf.errors.UnavailableError(None, None, "Socket closed"), True),
        (tf.errors.DeadlineExceededError(None, None, "late"), True),
        (tf.errors.InternalError(None, None, "aborted by: size 2", DERIVED), True),
        (tf.errors.InvalidArgumentError(None, None, "shape [4]", DERIVED), True),
        (tf.errors.InvalidArgumentError(None, None, "log of -1"), False),
        (tf.errors.InvalidArgumentError(None, None, "{{node my_collective}}"), False),
        (tf.errors.InternalError(None, None, "MKL failed"), False),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), False),
    ],
)
def test_failures_of_others_are_recognized_by_their_status(error, is_others):
    """By code, or as derived where ordinary ops have the same code; not by words."""
    assert workers_lib.is_collective_failure(error) is is_others


@pytest.mark.parametrize(
    "said",
    [
        "assertion failed: [no memory]\n\t [[{{node Assert}}]] [Op:__inference_step_3]",
        "2 root error(s) found.\n(0) INTERNAL:  assertion failed: [no memory]\n",
    ],
    ids=["one error", "two errors"],
)
def test_the_reason_of_a_failure_in_a_graph_is_what_failed(said):
    """Not the line that all errors of graphs begin with, nor where the op was made."""
    message = (
        "Graph execution error:\n\nDetected at node Assert defined at (most recent "
        'call last):\n  File "train.py", line 3, in step\n\n<stack traces gone>\n'
    )
    error = tf.errors.InvalidArgumentError(None, None, message + said)

    assert "assertion failed: [no memory]" == workers_lib.reason_of(error)


@pytest.fixture(scope="module")
def server():
    (port,) = free_ports(1)
    address = f"localhost:{port}"
    kept = tf.distribute.Server(
        {"worker": [address]}, job_name="worker", task_index=0, protocol="grpc"
    )
    yield address
    del kept


@pytest.fixture
def at():
    """Starts a stranger; returns its address."""
    with contextlib.ExitStack() as started:
        yield lambda how: started.enter_context(
            damaging.listening(free_ports(1)[0], how)
        )


def identity_of(address, timeout_sec=30.0):
    with contextlib.closing(liveness.Link(address, 2.0)) as link:
        assert link.responds(timeout_sec)
        return link.identity(timeout_sec)


def test_a_server_says_each_time_who_it_is(server):
    """Its incarnations are the same on every connection."""
    assert identity_of(server)
    assert identity_of(server) == identity_of(server)
    assert liveness.answers(server, 30.0)


@pytest.mark.parametrize("how", ["silent", "garbage", "web server"])
def test_a_stranger_gives_no_sign_of_life(at, how):
    address = at(how)

    assert not liveness.answers(address, 0.3)
    if how != "silent":
        with pytest.raises(ConnectionError, match=r"^does not speak HTTP/2$"):
            identity_of(address)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"\xff" * 30, b"\x0a\x05ab", b"\x0a\x02\xff\xff", b"\x0a\x00"],
)
def test_a_server_that_does_not_say_who_it_is_is_none_of_tensorflow(answer):
    """Another one of gRPC, without that call or with another answer."""
    call = grpc.unary_unary_rpc_method_handler(lambda *_: answer)
    status = {"GetStatus": call} if answer is not None else {}
    with futures.ThreadPoolExecutor(1) as pool:
        other = grpc.server(pool)
        other.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tensorflow.WorkerService", status)]
        )
        address = f"localhost:{other.add_insecure_port('localhost:0')}"
        other.start()
        with pytest.raises(ConnectionError, match=r"^is not a TensorFlow server$"):
            identity_of(address)
        other.stop(None).wait()


def _lose(peer):
    peer._link._socket.shutdown(socket.SHUT_RDWR)
    peer.wait_until_lost()


@pytest.mark.parametrize("how", ["nobody", "silent", "garbage", "web server"])
def test_a_client_is_not_left_for_a_lost_connection(server, at, how, monkeypatch):
    """It is asked who it is; nobody else is taken for it."""
    peer = liveness.Peer(server)
    server_lib.wait_for_client(peer, "worker 0", 30.0)
    monkeypatch.setattr(server_lib, "CLOSED_SEC", 0.3)
    for _ in range(2):
        assert not peer.has_ended()
        _lose(peer)
    assert not peer.has_ended()
    monkeypatch.setattr(liveness, "_ANSWER_SEC", 0.3)
    peer._address = f"localhost:{free_ports(1)[0]}" if how == "nobody" else at(how)
    peer._link._socket.shutdown(socket.SHUT_RDWR)

    other = "" if how == "nobody" else ", and another process listens at its address"
    assert f"the client has exited{other}" == server_lib.wait_until_left(peer)


def test_a_client_that_was_started_again_is_another_one(server):
    """Its incarnations are new."""
    peer = liveness.Peer(server)
    _lose(peer)
    peer._identity = frozenset({1})

    assert peer.has_ended()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("silent", r" \(another process listens at its address; it does not respond\)"),
        ("garbage", r" \(another process .*; it does not speak HTTP/2\)"),
        ("nobody", ""),
    ],
)
def test_a_client_that_does_not_start_is_named(at, how, what):
    address = f"localhost:{free_ports(1)[0]}" if how == "nobody" else at(how)
    peer = liveness.Peer(address)

    with pytest.raises(
        replicator.UnreachableError,
        match=r"the client, worker 0 \(somewhere\), did not start within 0.5 s"
        rf"{what}; start the training",
    ):
        server_lib.wait_for_client(peer, "worker 0 (somewhere)", 0.5)
    assert (how == "nobody") is peer.has_ended()  # others may be slow


def test_hanging_up_closes_the_connections_to_one_address(at):
    """Those to others stay."""
    addresses = [at("silent"), at("silent")]
    links = [liveness.Link(address, 2.0) for address in addresses]

    liveness.close_connections(addresses[0])

    assert [False, True] == [link.is_open() for link in links]
    links[1].close()


def test_hanging_up_closes_connections_of_either_family():
    """gRPC connects by IPv6 to addresses of IPv4 as well."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        for family, host in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):
            with socket.socket(family) as client:
                client.connect((host, port))
                accepted, _ = server.accept()
                with accepted:
                    accepted.settimeout(20)
                    liveness.close_connections(f"localhost:{port}")
                    assert b"" == accepted.recv(1), family
