"""What every worker of a test cluster runs: named cases, results as JSON.

python worker_cases.py FOLDER NUM_REPLICAS [CASE...]

What every backend promises is asked by the conformance suite; here is what only worker
processes do. Training runs on ``single`` in the test's own process too, for comparison.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import replicator
from replicator import devices

GLOBAL_BATCH_SIZE = 8
NUM_STEPS = 8
TIMEOUT_SEC = 60.0

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def convolution():
    """Convolutions with cross-replica batch norm between them."""
    return [
        keras.Input((12,)),
        keras.layers.Reshape((2, 2, 3)),
        keras.layers.Conv2D(4, 2, padding="same", use_bias=False),
        replicator.CrossReplicaBatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Conv2D(4, 2, padding="same"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


def embedding():
    """An embedding, whose gradients are tf.IndexedSlices."""
    return [
        keras.Input((12,)),
        keras.layers.Lambda(lambda x: tf.cast(tf.abs(x * 5), tf.int32) % 11),
        keras.layers.Embedding(11, 5),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


MODELS = {"convolution": convolution, "embedding": embedding}


def data():
    """Inputs and targets of a regression, the same in every process."""
    rng = np.random.default_rng(7)
    return (
        rng.normal(size=(64, 12)).astype(np.float32),
        rng.normal(size=(64, 3)).astype(np.float32),
    )


def train(repl, model_name, optimizer_name, *, num_steps=1, **options):
    """Trains a net; returns the losses of the job and the final weights."""
    # Workers other than 0 start from other weights, and must not notice.
    keras.utils.set_random_seed(1 + repl.worker_id)
    with repl.context():
        model = keras.Sequential(MODELS[model_name]())
        optimizer = repl.wrap_optimizer(OPTIMIZERS[optimizer_name](), **options)

    def input_fn(ctx):
        share = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        x, y = data()
        return (
            tf.data.Dataset.from_tensor_slices((x, y))
            .batch(GLOBAL_BATCH_SIZE, drop_remainder=True)
            .map(
                lambda a, b: tuple(
                    tf.reshape(v, [ctx.num_input_pipelines, -1, v.shape[-1]])[
                        ctx.input_pipeline_id
                    ]
                    for v in (a, b)
                )
            )
            .unbatch()
            .batch(share, drop_remainder=True)
            .repeat()
        )

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        weights = model.trainable_variables
        grads = tape.gradient(scaled, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    inputs = repl.make_input_iterator(input_fn)
    losses = [
        float(repl.reduce("mean", repl.run(step, inputs, num_steps=num_steps)))
        for _ in range(NUM_STEPS // num_steps)
    ]
    repl.assert_in_sync()
    return {"losses": losses, "weights": [w.numpy().tolist() for w in model.weights]}


def train_split(repl):
    """Trains layers on two logical devices; returns the final weights."""
    keras.utils.set_random_seed(1 + repl.worker_id)
    with repl.context():
        layers = []
        for place, (inputs, outputs) in enumerate([(12, 5), (5, 3)]):
            with replicator.logical_device(place):
                layers.append(keras.layers.Dense(outputs, activation="tanh"))
                layers[-1].build([None, inputs])
        weights = [w for layer in layers for w in layer.trainable_variables]
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.05))

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            for place, layer in enumerate(layers):
                with replicator.logical_device(place):
                    x = layer(x)
            loss = tf.reduce_mean((x - y) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    x, y = data()
    for start in range(0, 64, GLOBAL_BATCH_SIZE):
        parts = (
            np.split(a[start : start + GLOBAL_BATCH_SIZE], repl.num_replicas)
            for a in (x, y)
        )
        repl.run(step, tuple(share(repl, part) for part in parts))
    repl.assert_in_sync()
    return {
        "weights": [w.numpy().tolist() for w in weights],
        "places": [w.value.device.rpartition(":")[2] for w in weights],
    }


def logical_devices(repl):
    """Replicas of two devices each, one on every worker."""
    del repl  # this one has whole replicas
    return train_split(
        replicator.create(
            "multi_worker",
            num_replicas=2,
            devices=["CPU:0", "CPU:1"],
            logical_devices_per_replica=2,
            timeout_sec=TIMEOUT_SEC,
        )
    )


def num_collectives(repl, folder):
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
    tf.profiler.experimental.start(str(folder))
    for _ in range(8):
        repl.run(step, x)
    tf.profiler.experimental.stop()
    return counted_ops(folder)["CollectiveReduceV2"]


def counted_ops(folder):
    """How often each type of op ran, by the profile in a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.rglob("*.xplane.pb")
    counts = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                counts[name.rpartition(":")[2]] += 1
    return counts


def share(repl, values):
    """The part of one value per replica of the job that is for this worker."""
    first = repl.first_replica_id
    mine = values[first : first + repl.num_local_replicas]
    return replicator.PerReplica([tf.constant(value) for value in mine])


def topology(repl):
    """What a program may ask about its place."""
    ids = repl.run(lambda: replicator.get_replica_context().replica_id)
    return {
        "ids": [int(i) for i in ids],
        "facts": [
            repl.num_replicas,
            repl.num_local_replicas,
            repl.first_replica_id,
            repl.num_workers,
            repl.worker_id,
            repl.is_chief,
        ],
    }


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


def plain(value):
    """A tensor as lists of what JSON knows."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return array.tolist()
    return array.astype(complex).real.tolist()


def ops_of(dtype):
    """The reductions that a type knows."""
    if dtype == tf.bool:
        return ["min", "max"]
    return ["sum"] if dtype.is_complex else ["sum", "min", "max"]


def every_type(repl):
    """Sum, minimum, maximum, gather and broadcast of every type that there is."""
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
    """Tensors without elements, of known and of unknown shape."""

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
    """Tensors whose shape the trace does not know."""
    dataset = tf.data.Dataset.range(1, 9).batch(3).repeat()
    inputs = repl.make_input_iterator(lambda ctx: dataset)

    def step(x):
        return (
            replicator.all_gather(x),
            replicator.all_sum(x),
            replicator.broadcast(x, repl.num_replicas - 1),
        )

    return [[o[0].numpy().tolist() for o in repl.run(step, inputs)] for _ in range(2)]


def state(repl):
    """Replica-local variables, random state, and changes from outside."""
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
        random = tf.random.Generator.from_seed(3)

    def step():
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
        "generator": random.state.numpy().tolist(),
    }


def compressed(repl):
    """A sum in bfloat16, the same bits on every worker."""
    values = share(repl, [np.float32(1.001 + r) for r in range(repl.num_replicas)])

    def step(x):
        return replicator.all_reduce(x, "mean", compression="bfloat16")

    return [float(v) for v in repl.run(step, values)]


def exchange(repl):
    """Bytes of different lengths, the largest beyond four megabytes."""
    payload = bytes([repl.worker_id]) * (5_000_000 * repl.worker_id)
    return [len(part) for part in repl.gather_bytes(payload)]


def plans(repl):
    """What explain() says of a step with all kinds of collectives."""

    def all_kinds(x):
        return (
            replicator.all_sum([x, x + 1, tf.ones([600_000])]),
            replicator.all_gather(x),
            replicator.broadcast(x, 0),
        )

    repl.run(all_kinds, share(repl, [np.float32(r) for r in range(8)]))
    return repl.explain().partition("all_kinds")[2].partition("\n\n")[0]


def alike_failures(repl):
    """A step that fails to trace on all workers leaves everything usable."""

    def bad(x):
        return tf.cond(x > 0, lambda: replicator.all_sum(x), lambda: x)

    try:
        repl.run(bad, share(repl, [np.float32(1)] * 8))
    except replicator.ReplicatorError as error:
        first = type(error).__name__
    good = repl.run(replicator.all_sum, share(repl, [np.float32(1)] * 8))
    return [first, float(good[0])]


def disagreements(repl):
    """Each is noticed before anything runs, and the workers go on together."""
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

    wrong = {
        "kind": lambda: repl.run(other_kind, one),
        "number": lambda: repl.run(other_number, one),
        "shape": lambda: repl.run(
            sums, share(repl, [np.ones([2 if is_first else 3], np.float32)] * 8)
        ),
        "num_steps": lambda: repl.run(no_input, num_steps=2 if is_first else 3),
        "failure": lambda: repl.run(one_fails, one),
    }
    messages = {name: said(call) for name, call in wrong.items()}
    messages["after"] = float(repl.run(sums, one)[0])
    return messages


def drift(repl):
    """A variable that one worker changed alone is found."""
    with repl.context():
        weight = tf.Variable(1.0, name="weight")

    def step():
        return weight + 1.0

    repl.run(step)
    repl.assert_in_sync()
    if repl.worker_id == 1:
        weight.assign(2.0)
    try:
        repl.assert_in_sync()
    except replicator.ReplicatorError as error:
        return str(error)
    finally:
        weight.assign(1.0)
    return ""


def refused(repl):
    """Misuse that has a message of its own."""
    attempts = [
        lambda: repl.make_input_iterator(
            lambda ctx: None, replicator.InputReplicationMode.SINGLE
        ),
        lambda: repl.run(replicator.all_gather, share(repl, ["text"] * 8)),
        lambda: replicator.create("multi_worker", num_replicas=3),
        lambda: replicator.MultiWorkerReplicator(num_replicas=2, pattern="sideways"),
    ]
    return [said(attempt) for attempt in attempts]


ACCUMULATED = {"accumulation_steps": 2, "loss_scale": "dynamic"}
CASES = {
    "topology": topology,
    "every type": every_type,
    "empty tensors": empty_tensors,
    "unknown shapes": unknown_shapes,
    "state": state,
    "compressed": compressed,
    "exchange": exchange,
    "plans": plans,
    "alike failures": alike_failures,
    "disagreements": disagreements,
    "drift": drift,
    "refused": refused,
    "single steps": lambda repl: train(repl, "convolution", "momentum"),
    "several steps": lambda repl: train(repl, "convolution", "momentum", num_steps=4),
    "accumulated": lambda repl: train(repl, "embedding", "adam", **ACCUMULATED),
    "logical devices": logical_devices,
    "number of collectives": lambda repl: num_collectives(
        repl, Path(tempfile.mkdtemp(dir=sys.argv[1]))
    ),
}


def said(call):
    """The error that a call ends with."""
    try:
        call()
    except (replicator.ReplicatorError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main():
    """Runs all cases and writes what they returned."""
    folder, num_replicas = Path(sys.argv[1]), int(sys.argv[2])
    devices.split_cpu(2)
    repl = replicator.create(
        "multi_worker", num_replicas=num_replicas, timeout_sec=TIMEOUT_SEC
    )
    results = {}
    for name, case in CASES.items():
        if name not in (sys.argv[3:] or CASES):
            continue
        sys.stdout.write(f"case {name}\n")
        sys.stdout.flush()
        try:
            results[name] = {"value": case(repl)}
        except Exception:  # noqa: BLE001 (the test shows it)
            results[name] = {"trace": traceback.format_exc()}
    path = folder / f"results_{repl.worker_id}.json"
    path.write_text(json.dumps(results))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
