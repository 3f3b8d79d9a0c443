"""Replicas that meet in collectives of one process; prints what it saw as JSON.

    python flat_program.py NUM_STEPS

Eight virtual CPU devices are taken for parts of one GPU each, and one thread runs ops.
"""

import collections
import json
import sys
import time
from pathlib import Path

import tensorflow as tf

import replicator
from replicator.core import devices

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from tiny_models import take_cpus_for_gpus

NUM_DEVICES = 8
NUM_REPLICAS = (2, 8)
STEPS_PER_RUN = 20


def make(num_replicas, **options):
    names = [f"CPU:{index}" for index in range(num_replicas)]
    return replicator.create(
        "in_graph", num_replicas=num_replicas, devices=names, **options
    )


def per_replica(values):
    return replicator.PerReplica([tf.constant(float(value)) for value in values])


def train(num_replicas, num_steps):
    repl = make(num_replicas)
    with repl.context():
        weights = [tf.Variable(tf.zeros([300])), tf.Variable(tf.zeros([20_000]))]

    def step():
        x = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        for weight in weights:
            weight.assign_add(replicator.all_sum(tf.ones_like(weight) * x))

    for _ in range(num_steps // STEPS_PER_RUN):
        repl.run(step, num_steps=STEPS_PER_RUN)
    repl.assert_in_sync()
    ends = [float(weight[-1]) for weight in weights]
    return {"weights": ends, "algorithm": "algorithm ring" in repl.explain()}


def gated(num_replicas):
    import keras

    repl = make(num_replicas)
    with repl.context():
        weight = tf.Variable(tf.zeros([300]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)

    def step(x):
        optimizer.apply_gradients([(tf.ones_like(weight) * x, weight)])
        return replicator.all_mean(x)

    values = per_replica(range(num_replicas))
    means = [float(repl.run(step, values)[0]) for _ in range(4)]
    return {"means": means, "weight": float(weight[0])}


def fail():
    """One replica of four raises while the others wait for it; then all continue."""
    repl = make(4)

    def step(x):
        tf.debugging.assert_less(x, 10.0, message="replica 1 has no memory")
        return replicator.all_sum(x)

    repl.run(step, per_replica([0, 1, 2, 3]))
    start = time.monotonic()
    error = ""
    try:
        repl.run(step, per_replica([0, 11, 2, 3]))
    except tf.errors.InvalidArgumentError as raised:
        error = raised.message
    sec = time.monotonic() - start
    after = repl.run(step, per_replica([0, 1, 2, 3]))
    return {"error": error, "sec": sec, "after": [float(x) for x in after]}


def wait_too_long():
    """A replica that never comes; ends all collectives of this process."""
    repl = make(2, timeout_sec=1.0)

    def step(x):
        return replicator.all_sum(x)

    made = devices.flat_group
    group = made(repl.topology, None)
    three = devices.FlatGroup(size=3, key=group.key + 1000, keys=group.keys)
    devices._FLAT_GROUPS[2, repl.topology.replica_devices] = three
    errors = []
    for _ in range(2):
        start = time.monotonic()
        try:
            repl.run(step, per_replica([0, 1]))
        except replicator.ReplicatorError as raised:
            errors.append([type(raised).__name__, str(raised)])
        sec = time.monotonic() - start
    return {"errors": errors, "sec": sec}


def cross_device_edges(num_replicas):
    """Tensors that cross devices to publish 20 statistics, by type."""
    repl = make(num_replicas)
    with repl.context():
        weight = tf.Variable(tf.ones([4]))
        statistics = [
            tf.Variable(tf.zeros([2] * (i % 3)), trainable=False) for i in range(16)
        ] + [tf.Variable(tf.zeros([3], tf.float64), trainable=False) for _ in range(4)]

    def step(x):
        weight.assign_add(replicator.all_mean(tf.ones([4]) * x))
        for statistic in statistics:
            statistic.assign_add(tf.ones_like(statistic) * tf.cast(x, statistic.dtype))

    repl.run(step, per_replica(range(num_replicas)))
    ends = [float(tf.reduce_max(statistic)) for statistic in statistics]
    program = repl.build_step(step, [tf.TensorSpec([], tf.float32)])
    dispatch = program._make_function(1, None, None)
    dispatch._trace(per_replica(range(num_replicas)))
    graph = dispatch._traced.graph
    crossing = {
        (tensor.name, op.device): tensor.dtype.name
        for op in graph.get_operations()
        for tensor in op.inputs
        if op.device and tensor.op.device not in ("", op.device)
    }
    return {"edges": collections.Counter(crossing.values()), "means": sorted(set(ends))}


def main(num_steps):
    tf.config.threading.set_inter_op_parallelism_threads(1)
    devices.split_cpu(NUM_DEVICES)
    take_cpus_for_gpus()
    found = {
        "train": {n: train(n, num_steps) for n in NUM_REPLICAS},
        "edges": {n: cross_device_edges(n) for n in NUM_REPLICAS},
        "gated": gated(2),
        "fail": fail(),
        "wait": wait_too_long(),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
