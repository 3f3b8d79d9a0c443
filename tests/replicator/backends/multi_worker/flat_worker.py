"""What two workers of two devices each do in one flat group of four replicas."""

import time

import pytest
import tensorflow as tf
from tiny_models import Training, share
from virtual_gpus import take_cpus_for_gpus

import replicator
from replicator.core import devices
from replicator.engine import chain

NUM_STEPS = 20
TIMEOUT_SEC = 60.0


def train(repl):
    """A training, and then the other collectives."""
    training = Training(repl, "deep", "momentum")
    training.run_between(0, NUM_STEPS)
    repl.assert_in_sync()
    return {"weights": training.weights(), "plan": repl.explain(), **mixed(repl)}


def mixed(repl):
    """Collectives over all replicas among those that go through one device."""
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
    return {
        "total": float(total[0]),
        "count": int(count[1]),
        "rows": [float(value) for value in rows[0]],
        "statistic": statistic.numpy().tolist(),
    }


def fail(repl):
    """The last replica of the job cannot run its second step."""

    def step(x):
        check = tf.debugging.assert_less(
            x, 10.0, message="the last replica has no memory"
        )
        with tf.control_dependencies([check]):  # or the sum may be done before it
            x = tf.identity(x)
        return replicator.all_sum(tf.ones([300]) * x)

    repl.run(step, share(repl, [0.0, 1.0, 2.0, 3.0]))
    start = time.monotonic()
    try:
        repl.run(step, share(repl, [0.0, 1.0, 2.0, 13.0]))
    except (tf.errors.OpError, replicator.ReplicatorError) as error:
        text = str(error)
        return {
            "type": type(error).__name__,
            "message": text,
            "sec": time.monotonic() - start,
        }
    return {}


def started(repl):
    """The same by the op that GPUs use between processes, as a ring."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "_BY_START", ("nccl", "ring"))
        return train(repl)


CASES = {"train": train, "started": started, "fail": fail}


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
