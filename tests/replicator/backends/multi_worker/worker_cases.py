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
from tiny_models import share

import replicator
from replicator.core import devices

TIMEOUT_SEC = 60.0


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


TYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)


def of_type(name, replica_id):
    """What a replica contributes in a type."""
    values = (np.arange(6, dtype=np.uint64).reshape(2, 3) * (replica_id + 3)) % 7
    if name == "uint64":
        values += np.uint64(2**63)  # must not be taken for negative
    return tf.cast(values, tf.as_dtype(name))


def ops_of(dtype):
    """The reductions that a type knows, as TensorFlow spells them."""
    if dtype == tf.bool:
        return {"min": tf.reduce_all, "max": tf.reduce_any}
    if dtype.is_complex:
        return {"sum": tf.reduce_sum}
    return {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}


def every_type(repl):
    """The types in which something differs from what one process computes."""
    values = {name: [of_type(name, r) for r in range(2)] for name in TYPES}
    mine = {name: share(repl, of_each) for name, of_each in values.items()}

    def step(given):
        return {
            name: {
                "gather": replicator.all_gather(x),
                "broadcast": replicator.broadcast(x, 1),
                **{op: replicator.all_reduce(x, op) for op in ops_of(x.dtype)},
            }
            for name, x in given.items()
        }

    outputs, wrong = repl.run(step, mine), []
    for name, of_each in values.items():
        stacked = tf.stack(of_each)
        expected = {"gather": stacked, "broadcast": of_each[1]}
        for op, reduce in ops_of(stacked.dtype).items():
            expected[op] = reduce(stacked, axis=0)
        assert expected.keys() == outputs[name].keys()
        for op, value in expected.items():
            got = outputs[name][op][-1]
            if got.dtype != value.dtype or not np.array_equal(got, value):
                wrong.append([name, op])
    return wrong


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
    def local_variable(value, **options):
        return tf.Variable(
            value,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            **options,
        )

    with repl.context():
        local, half = local_variable(0.0), local_variable(49152.0, dtype=tf.float16)
        count = local_variable(0, aggregation=tf.VariableAggregation.SUM)
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
    message = _said(control.assert_in_sync)
    return {"losses": losses, "explained": control.explain(), "message": message}


def _said(call):
    try:
        call()
    except (replicator.ReplicatorError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagreements(repl):
    """Each is noticed before anything runs, and the workers continue together."""
    is_first = repl.worker_id == 0
    one = share(repl, [np.float32(1)] * 8)

    def sums(x):
        return replicator.all_sum(x)

    def other_kind(x):
        return replicator.all_sum(x) if is_first else replicator.all_max(x)

    def other_number(x):
        return [replicator.all_sum(x) for _ in range(2 if is_first else 1)]

    def one_fails(x):
        if not is_first:
            raise KeyError("only here")
        return replicator.all_sum(x)

    def no_input():
        return replicator.all_sum(1.0)

    data = tf.data.Dataset.from_tensors(1.0).repeat(4)
    mixed = repl.make_input_iterator(lambda _: data.batch(2, drop_remainder=is_first))
    wrong = {
        "sizes": lambda: repl.run(lambda x: replicator.all_sum(x[0]), mixed),
        "kind": lambda: repl.run(other_kind, one),
        "number": lambda: repl.run(other_number, one),
        "shape": lambda: repl.run(
            sums, share(repl, [np.ones([2 if is_first else 3], np.float32)] * 8)
        ),
        "num_steps": lambda: repl.run(no_input, num_steps=2 if is_first else 3),
        "failure": lambda: repl.run(one_fails, one),
    }
    messages = {name: _said(call) for name, call in wrong.items()}
    return messages | {"after": float(repl.run(sums, one)[0])}


def drift(repl):
    with repl.context():
        weight = tf.Variable(1.0, name="weight")

    def step():
        return weight + 1.0

    repl.run(step)
    repl.assert_in_sync()
    weight.assign(1.0 + repl.worker_id)
    message = _said(repl.assert_in_sync)
    weight.assign(1.0)
    return message


def refused(repl):
    def of_another():
        """Inputs of a replicator of this process alone."""
        other = replicator.create("in_graph", num_replicas=1)
        return other.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))

    attempts = {
        "one pipeline": lambda: repl.make_input_iterator(
            lambda ctx: None, replicator.InputReplicationMode.SINGLE
        ),
        "strings": lambda: repl.run(replicator.all_gather, share(repl, ["text"] * 8)),
        "uneven replicas": lambda: replicator.create("multi_worker", num_replicas=3),
        "pattern": lambda: replicator.MultiWorkerReplicator(
            num_replicas=2, pattern="sideways"
        ),
        "inputs": lambda: repl.run(replicator.all_sum, of_another()),
        "values": lambda: repl.run(replicator.all_sum, next(of_another())),
    }
    return {name: _said(attempt) for name, attempt in attempts.items()}


CASES = {
    "every type": every_type,
    "empty tensors": empty_tensors,
    "unknown shapes": unknown_shapes,
    "state": state,
    "compressed": compressed,
    "exchange": exchange,
    "plans": plans,
    "disagreements": disagreements,
    "drift": drift,
    "refused": refused,
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
