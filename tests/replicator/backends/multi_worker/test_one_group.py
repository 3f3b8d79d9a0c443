"""Two workers of two devices each, which are one group of four replicas."""

import time
from pathlib import Path

import case_cluster
import pytest
import tensorflow as tf
from case_cluster import check, check_close, check_message, gathered
from tiny_models import Training, share, take_cpus_for_gpus

import replicator
from replicator.core import devices
from replicator.engine import plan

NUM_STEPS = 20
TIMEOUT_SEC = 60.0
FAILURE_SEC = 30.0  # a failure ends all workers within this time; it takes a second


def train(repl):
    training = Training(repl, "deep", "momentum")
    training.run_between(0, NUM_STEPS)
    return training.weights()


def replicas_of_two_workers_meet(repl):
    """Weights are those of one device, bit for bit the same on both workers."""
    weights = train(repl)
    repl.assert_in_sync()
    check([weights] * 2, gathered(repl, weights))
    if repl.is_chief:
        check_close(train(replicator.create("single")), weights)
    explained = repl.explain()
    assert "algorithm ring" in explained, explained
    assert "over all replicas of 2 workers" in explained, explained
    other_collectives_go_through_one_device(repl)


def other_collectives_go_through_one_device(repl):
    """Integers, extremes and gathers, in order with sums over all replicas."""
    with repl.context():
        statistic = tf.Variable([0.0, 0.0], trainable=False)

    def step(x):
        total = replicator.all_sum(tf.ones([3]) * x)
        count = replicator.all_sum(tf.cast(x, tf.int32))
        least = replicator.all_min(total[0] - x)
        rows = replicator.all_gather(x)
        statistic.assign_add([x, x])
        return total[0] + replicator.all_mean(least), count, rows

    x = share(repl, [float(r) for r in range(repl.num_replicas)])
    for _ in range(3):
        total, count, rows = repl.run(step, x)
    check(6.0 + 3.0, float(total[0]))
    check(6, int(count[1]))
    check([0.0, 1.0, 2.0, 3.0], [float(value) for value in rows[0]])
    check([4.5, 4.5], statistic.numpy().tolist())


def replicas_of_two_workers_meet_in_an_op_that_starts(repl):
    """The op that GPUs use between processes, as a ring."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "BY_START", ("nccl", "ring"))
        replicas_of_two_workers_meet(repl)


def a_replica_that_fails_ends_all_workers_with_its_error(repl):
    """Its own worker raises what it raised; the other one says which worker failed."""

    def step(x):
        fits = tf.debugging.assert_less(
            x, 10.0, message="the last replica has no memory"
        )
        with tf.control_dependencies([fits]):  # or the sum may be done before it
            x = tf.identity(x)
        return replicator.all_sum(tf.ones([300]) * x)

    repl.run(step, share(repl, [0.0, 1.0, 2.0, 3.0]))
    start = time.monotonic()
    check_message(
        "InvalidArgumentError: .*the last replica has no memory"
        if repl.worker_id == 1
        else "WorkerLostError: .*worker 1.*the last replica has no memory",
        lambda: repl.run(step, share(repl, [0.0, 1.0, 2.0, 13.0])),
    )
    assert time.monotonic() - start < FAILURE_SEC


# The last one ends the group.
CASES = {
    case.__name__: case
    for case in (
        replicas_of_two_workers_meet,
        replicas_of_two_workers_meet_in_an_op_that_starts,
        a_replica_that_fails_ends_all_workers_with_its_error,
    )
}


def set_up(_folder):
    devices.split_cpu(2)
    take_cpus_for_gpus()
    repl = replicator.create(
        "multi_worker",
        num_replicas=4,
        devices=["CPU:0", "CPU:1"],
        timeout_sec=TIMEOUT_SEC,
    )
    return (repl,)


pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def one_group(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    path = Path(__file__).parent
    return case_cluster.ran("test_one_group", folder, path=path, num_workers=2)


@pytest.mark.parametrize("case", CASES)
def test_two_workers_in_one_group(one_group, case):
    assert [None, None] == one_group.values(case)
