"""Failure detection: one watch per process, a timeout per replicator or block."""

import json
import threading
import time

import pytest
import tensorflow as tf
from damaging import until

from replicator.cluster import environment, liveness
from replicator.cluster import workers as workers_lib
from replicator.cluster.liveness import Deadline, FailureDetector, WorkerWatch
from replicator.errors import WorkerLostError

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
