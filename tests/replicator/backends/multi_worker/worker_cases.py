"""What every worker of a test cluster runs.

What every backend promises is asked by the conformance suite; here is what only worker
processes do.
"""

import collections
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import uneven_epoch
import worker_mistakes
from tiny_models import share
from worker_types import TYPES, of_type, ops_of, plain

import replicator
from replicator.core import devices

TIMEOUT_SEC = 60.0
LATE_SEC = 0.1


def num_collectives(repl):
    """Collectives between workers that eight accumulating calls really ran."""
    with repl.context():
        weight = tf.Variable(tf.ones([300]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1), accumulation_steps=4)

    def step(x):
        optimizer.apply_gradients([(weight * x, weight)])

    x = share(repl, [np.float32(r) for r in range(repl.num_replicas)])
    # The last call communicates nothing: what it began might end after the profile.
    for _ in range(5):
        repl.run(step, x)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(8):
            repl.run(step, x)
        tf.profiler.experimental.stop()
        return counted_ops(Path(folder))["CollectiveReduceV2"]


def counted_ops(folder):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.rglob("*.xplane.pb")
    counts = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                counts[name.rpartition(":")[2]] += 1
    return counts


def every_type(repl):
    here = range(repl.first_replica_id, repl.first_replica_id + repl.num_local_replicas)
    mine = {
        name: replicator.PerReplica([of_type(name, r) for r in here]) for name in TYPES
    }

    def step(values):
        return {
            name: {
                "gather": replicator.all_gather(x),
                "broadcast": replicator.broadcast(x, 1),
                **{op: replicator.all_reduce(x, op) for op in ops_of(x.dtype)},
            }
            for name, x in values.items()
        }

    outputs = repl.run(step, mine)
    return tf.nest.map_structure(lambda leaf: plain(leaf[-1]), outputs)


def empty_tensors(repl):
    def step(x):
        return replicator.all_gather(x), replicator.all_sum(x)

    known = repl.run(step, share(repl, [np.zeros([0, 2], np.float32)] * 8))
    dataset = tf.data.Dataset.from_tensors(np.arange(4, dtype=np.int64)).repeat()
    inputs = repl.make_input_iterator(lambda ctx: dataset)
    unknown = repl.run(
        lambda x: replicator.all_gather(tf.boolean_mask(x, x > 9)), inputs
    )
    return [list(known[0][0].shape), list(known[1][0].shape), list(unknown[0].shape)]


def unknown_shapes(repl):
    dataset = tf.data.Dataset.range(1, 9).batch(3).repeat()
    inputs = repl.make_input_iterator(lambda ctx: dataset)

    def step(x):
        return (
            replicator.all_gather(x),
            replicator.all_sum(x),
            replicator.broadcast(x, repl.num_replicas - 1),
        )

    return [[o[0].numpy().tolist() for o in repl.run(step, inputs)] for _ in range(4)]


def state(repl):
    with repl.context():
        local = tf.Variable(
            0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ
        )
        count = tf.Variable(
            0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        half = tf.Variable(
            49152.0,
            dtype=tf.float16,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
        )
        random = tf.random.Generator.from_seed(3)

    def step():
        half.assign(half - 1024.0)
        replica_id = replicator.get_replica_context().replica_id
        local.assign_add(tf.cast(replica_id + 1, tf.float32))
        count.assign_add(replica_id + 1)
        return random.normal([]), local.read_value()

    first, _ = repl.run(step)
    before = [float(local), int(count)]
    local.assign(10.0)
    second, seen = repl.run(step)
    return {
        "draws": [float(v) for v in [*first.values, *second.values]],
        "outside": before,
        "seen": [float(v) for v in seen],
        "after": [float(local), int(count)],
        "half": float(half),
        "generator": random.state.numpy().tolist(),
    }


def compressed(repl):
    values = share(repl, [np.float32(1.001 + r) for r in range(repl.num_replicas)])

    def step(x):
        return replicator.all_reduce(x, "mean", compression="bfloat16")

    return [float(v) for v in repl.run(step, values)]


def exchange(repl):
    """Bytes of different lengths, the largest beyond four megabytes."""
    payload = bytes([repl.worker_id]) * (5_000_000 * repl.worker_id)
    return [len(part) for part in repl.gather_bytes(payload)]


def plans(repl):
    def all_kinds(x):
        return (
            replicator.all_sum([x, x + 1, tf.ones([600_000])]),
            replicator.all_gather(x),
            replicator.broadcast(x, 0),
        )

    repl.run(all_kinds, share(repl, [np.float32(r) for r in range(8)]))
    return repl.explain().partition("all_kinds")[2].partition("\n\n")[0]


def without_communication(repl):
    """A control that runs another number of steps on every worker: nobody waits."""
    control = replicator.create(
        "multi_worker",
        num_replicas=repl.num_replicas,
        timeout_sec=TIMEOUT_SEC,
        without_communication=True,
    )
    with control.context():
        weight = tf.Variable([1.0, 1.0])
        statistic = tf.Variable(0.0, trainable=False)
        optimizer = control.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        loss = tf.reduce_sum(weight * x)
        statistic.assign(loss)
        optimizer.apply_gradients([(tf.fill([2], x), weight)])
        return loss

    x = share(control, [np.float32(1 + r) for r in range(control.num_replicas)])
    losses = [
        float(control.reduce("mean", control.run(step, x)))
        for _ in range(1 + 2 * control.worker_id)
    ]
    message = ""
    try:
        control.assert_in_sync()
    except replicator.ReplicatorError as error:
        message = str(error)
    return {"losses": losses, "explained": control.explain(), "message": message}


CASES = {
    "every type": every_type,
    "empty tensors": empty_tensors,
    "unknown shapes": unknown_shapes,
    "state": state,
    "compressed": compressed,
    "exchange": exchange,
    "plans": plans,
    **worker_mistakes.CASES,
    "number of collectives": num_collectives,
    "without communication": without_communication,
    "uneven epoch": uneven_epoch.run,
}


def set_up(_folder, *, num_replicas):
    devices.split_cpu(2)
    return (
        replicator.create(
            "multi_worker", num_replicas=num_replicas, timeout_sec=TIMEOUT_SEC
        ),
    )
