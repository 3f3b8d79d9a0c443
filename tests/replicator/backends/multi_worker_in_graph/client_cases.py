"""Cases that run in the client of the test cluster, in this order.

Once they have ended and there is a file ``continue``, the client runs steps until it is
killed.
"""

import dataclasses
import functools
import sys
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tiny_models
import uneven_epoch

import replicator
from replicator.engine import plan

sys.path.append(str(Path(tiny_models.__file__).parent / "graphs"))

NUM_STEPS = 12
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@functools.cache
def make(num_replicas):
    return replicator.create(
        "multi_worker_in_graph", num_replicas=num_replicas, connect_timeout_sec=60
    )


def set_up(_folder):
    """Connects: without servers, no case can run."""
    make(2)
    return ()


def afterwards(folder):
    """Steps, so that the client can be killed in one; says when they have begun."""
    while not (folder / "continue").exists():  # the cores are left to other tests
        time.sleep(0.1)
    training = tiny_models.Training(make(2), "wide")
    training.run(4, num_steps_per_run=4)
    (folder / "stepping").touch()
    while True:
        training.run(4, num_steps_per_run=4)


def wide_training(repl, **options):
    return tiny_models.trajectory(
        repl, "wide", "momentum", **{"num_steps": NUM_STEPS, **options}
    )


def split_training(repl):
    return tiny_models.Training(repl, "split", "momentum", mode="SINGLE")


@case
def an_uneven_epoch():
    """Its last step has one example, for one of four replicas."""
    return uneven_epoch.run(make(4))


@case
def split_over_workers():
    repl = replicator.create(
        "multi_worker_in_graph",
        num_replicas=1,
        logical_devices_per_replica=2,
        connect_timeout_sec=60,
    )
    training = split_training(repl)
    return {
        "losses": training.run(NUM_STEPS),
        "weights": training.weights(),
        "devices": [weight.value.device for weight in training.model.weights],
    }


def _message(function):
    try:
        function()
    except replicator.ReplicatorError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@case
def python_in_a_pipeline():
    """Python runs in the client only, so other workers' pipelines cannot call it."""
    repl = make(2)

    def numbers():
        yield from (1.0, 2.0)

    def from_generator(ctx):
        spec = tf.TensorSpec([], tf.float32)
        return tf.data.Dataset.from_generator(numbers, output_signature=spec)

    def from_function(ctx):
        def add(x):
            return tf.py_function(lambda y: y + 1, [x], tf.int64)

        return tf.data.Dataset.range(3).map(add).map(lambda x: x * 2).prefetch(1)

    modes = replicator.InputReplicationMode
    single = repl.make_input_iterator(from_generator, modes.SINGLE)
    return {
        "from_generator": _message(lambda: repl.make_input_iterator(from_generator)),
        "py_function": _message(
            lambda: repl.make_input_iterator(from_function, modes.PER_REPLICA)
        ),
        "single": [float(value) for value in repl.run(lambda x: x, single)],
    }


@case
def what_a_step_captures():
    """A table is used where it is; Python, too, and so not on another worker."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], [10.0, 20.0]), 0.0
    )

    def python():
        return tf.py_function(lambda: 1.0, [], tf.float32)

    def look_up():
        return table.lookup(replicator.get_replica_context().replica_id)

    return {
        "found": [float(value) for value in make(2).run(look_up)],
        "python": _message(lambda: make(2).run(python)),
    }


@case
def places():
    """Where pipelines live, and what a replica's batch comes from."""
    repl = make(4)
    found = {}
    for mode in replicator.InputReplicationMode:
        contexts = []

        def input_fn(ctx, contexts=contexts):
            contexts.append([ctx.input_pipeline_id, ctx.num_input_pipelines])
            return tf.data.Dataset.range(10).map(lambda x: x + 100 * contexts[-1][0])

        inputs = repl.make_input_iterator(input_fn, mode)
        batches = [int(v) for v in repl.run(lambda x: x, inputs)]
        devices = [i._iterator_resource.device for i in inputs.iterators]
        received = list(contexts)
        ahead = repl.make_input_iterator(input_fn, mode, prefetch_to_device=2)
        found[mode.name] = {
            "contexts": received,
            "devices": devices,
            "batches": batches,
            "ahead": [int(v) for v in repl.run(lambda x: x, ahead, num_steps=2)],
        }
    return found


@case
def drift():
    repl = make(4)
    with repl.context():
        weight = tf.Variable([1.0, 2.0])
    repl.run(lambda: weight.assign_add(tf.ones([2]) * replicator.all_sum(1.0)))
    repl.assert_in_sync()
    entry = next(e for e in repl._table.entries() if e.variable is weight)
    entry.copies[2].assign([7.0, 7.0])
    message = _message(repl.assert_in_sync)
    weight.assign([1.0, 2.0])  # the remedy that it names
    repl.run(lambda: weight + 0.0)
    repl.assert_in_sync()
    return {"message": message, "devices": [copy.device for copy in entry.copies]}


@case
def explained():
    repl = make(4)
    repl._programs = type(repl._programs)()

    def step():
        value = tf.ones([1000])  # 4000 bytes
        return replicator.all_sum(value), replicator.all_gather(value)

    repl.run(step)
    return repl.explain()


@case
def outputs():
    """What four replicas return of several types, by output; in a loop too."""

    def step():
        replica = replicator.get_replica_context().replica_id
        value = tf.cast(replica, tf.float32)
        return (
            value,
            tf.stack([[value], [value + 0.5]]),
            replica + 10,
            replica > 1,
            tf.strings.as_string(replica),
            tf.range(replica),
            tf.fill([200, 200], value)[:, 0] + tf.zeros([200, 200]),
        )

    found = []
    for num_steps in (1, 2):
        values = make(4).run(step, num_steps=num_steps)
        found.append([[v.numpy() for v in of_output] for of_output in values])
    return [
        [[v.decode() if isinstance(v, bytes) else v.tolist() for v in vs] for vs in one]
        for one in found
    ]


@case
def executed_graphs():
    """What a step costs between two processes, by the number of replicas."""
    from executed_graph import executed

    found = {}
    for num_replicas in (2, 12):
        repl = make(num_replicas)
        training = tiny_models.Training(repl, "batch norm", "momentum")
        of = executed(lambda training=training: training.run(1), between_processes=True)
        found[num_replicas] = dataclasses.asdict(of)
    return found


@case
def packed_and_alone():
    """The same training with packed gradients, and with each on its own."""
    packed = wide_training(make(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FUSE_BETWEEN_PROCESSES_BELOW_BYTES", 0)
        return {"packed": packed, "alone": wide_training(make(4))}


@case
def sharded_parameters():
    """Weights of four replicas, whose variables are on two workers, and where."""
    repl = replicator.create(
        "multi_worker_in_graph", num_replicas=4, connect_timeout_sec=60
    )
    training = tiny_models.Training(
        repl, "deep", "clipped adamw", sharded_update="parameters"
    )
    training.run_between(0, 10)
    return {
        "weights": training.weights(),
        "devices": [w.value.device for w in training.model.weights],
        "bytes": sum(w.numpy().nbytes for w in training.model.weights),
        "explained": repl.explain(),
    }


@case
def without_communication():
    """Steps of a control: every worker trains its own copy of a variable."""
    repl = replicator.create(
        "multi_worker_in_graph",
        num_replicas=2,
        connect_timeout_sec=60,
        without_communication=True,
    )
    with repl.context():
        weight = tf.Variable([1.0, 1.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tf.fill([2], x), weight)])
        return loss

    values = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    losses = [[float(loss) for loss in repl.run(step, values)] for _ in range(3)]
    return {"losses": losses, "explained": repl.explain()}
