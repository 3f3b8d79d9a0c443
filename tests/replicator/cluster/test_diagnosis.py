"""Who is lost, and who began it, from what workers report of themselves."""

import pytest
import tensorflow as tf

from replicator._tf import workers
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.workers import runtime

ME = "worker 0 (localhost:1000)"
DERIVED = {workers.DERIVED: b""}


class FakeState:
    """Worker 0 of three, with a choice of what is wrong with the others."""

    def __init__(self, faults, *, has_leader=True):
        addresses = tuple(f"localhost:{1000 + i}" for i in range(3))
        self.config = ClusterConfig(
            addresses={"worker": addresses}, kind="worker", index=0
        )
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
        assert 0 < timeout_sec <= runtime._GRACE_SEC
        worker = int(key.rpartition("/")[2])
        if worker not in found:
            raise tf.errors.DeadlineExceededError(None, None, "silent")
        return found[worker]

    monkeypatch.setattr(runtime._tf_workers, "get_value", get_value)
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

    error = runtime.diagnose(FakeState(faults), "RecvBuf failed\nmore", 30.0)

    with pytest.raises(type(error), match=expected):
        raise error
    assert ME in str(error)
    assert "timeout_sec, which is 30 s" in str(error)


def test_without_the_coordination_service_connections_tell(reports):
    """Worker 0 hosts it; when that is gone, nobody reports."""
    reports[1] = "step 'train'"
    state = FakeState({1: "has exited"}, has_leader=False)

    error = runtime.diagnose(state, "no more", 30.0)

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
    assert runtime.is_collective_failure(error) is is_others


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

    assert "assertion failed: [no memory]" == workers.reason_of(error)
