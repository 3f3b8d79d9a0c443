"""Cases of two workers and two servers, run by the chief of a test cluster."""

import tempfile

import keras
import numpy as np
import state_cases
import tensorflow as tf
from state_cases import by_pipeline, case

import replicator
from replicator import InputReplicationMode
from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

NUM_STEPS = 60
NUM_CALLS = 3
MOST_CALLS = 50
CASES = state_cases.CASES


def hammer(
    repl,
    optimizer,
    make_grad,
    *,
    mode=InputReplicationMode.PER_WORKER,
    until_one_is_behind=False,
):
    """Updates four variables by whole-number gradients from all workers at once."""
    with repl.context():
        weights = [tf.Variable(tf.zeros([n, 2]), name=f"w{n}") for n in (3, 40, 5, 7)]
        wrapped = repl.wrap_optimizer(optimizer())
        counter = tf.Variable(0, trainable=False)

    def step(value):
        wrapped.apply_gradients([(make_grad(w, value), w) for w in weights])
        counter.assign_add(tf.cast(value, tf.int32), read_value=False)
        return value

    inputs = repl.make_input_iterator(by_pipeline, mode)
    for _ in range(NUM_CALLS):
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
    repl.join()
    found = {
        "weights": [np.unique(w.numpy()).tolist() for w in weights],
        "num_updates": int(wrapped.iterations.numpy()),
        "counter": int(counter.numpy()),
        "servers": sorted({w.device for w in weights}),
        "is_fused": wrapped.uses_fused_update,
        "staleness": dict(repl.staleness().histogram),
    }
    for _ in range(MOST_CALLS if until_one_is_behind else 0):
        if repl.staleness().max:
            break
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
        repl.join()
    return found | {"max_staleness": repl.staleness().max}


def dense(weight, value):
    """A gradient of one integer, which has to wait for the weight."""
    return 0.0 * weight + value


def slices(weight, value):
    """A sparse gradient that names every row, and the first one twice."""
    rows = tf.concat([tf.range(weight.shape[0]), [0]], axis=0)
    values = tf.fill([weight.shape[0] + 1, 2], value)
    return tf.IndexedSlices(values, rows, tf.constant(weight.shape.as_list()))


@case
def sums():
    return hammer(
        replicator.create("async"),
        lambda: keras.optimizers.SGD(1.0),
        dense,
        until_one_is_behind=True,
    )


@case
def sparse_sums():
    return hammer(
        MultiWorkerAsyncReplicator(), lambda: keras.optimizers.SGD(1.0), slices
    )


@case
def sharded_embedding():
    """Rows 0, 1 and 4 lose 2, 1 and 1 in every step, on the servers where they are."""
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        layer = replicator.ShardedEmbedding(5, 2, num_parts=2, initializer="zeros")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([0, 0, 1, 4])))
        parts = layer.parts
        gradients = tape.gradient(loss, [part.value for part in parts])
        optimizer.apply_gradients(zip(gradients, parts, strict=True))

    repl.schedule(step, num_steps=NUM_STEPS)
    repl.join()
    return {
        "table": layer.table().numpy().tolist(),
        "servers": sorted({part.value.device for part in layer.parts}),
    }


@case
def linear_momentum():
    """Rate 1 and momentum 1: whole gradients give whole slots, which show each step."""
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        weight = tf.Variable(tf.zeros([4]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0, momentum=1.0))

    def step(value):
        optimizer.apply_gradients([(tf.fill([4], value), weight)])

    inputs = repl.make_input_iterator(by_pipeline)
    repl.run(step, inputs, num_steps=NUM_STEPS)
    return np.unique(optimizer.wrapped.momentums[0].numpy()).tolist()


@case
def adam():
    """Two weights on two servers; the last half of the updates is made again."""
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        weights = [tf.Variable([0.0]), tf.Variable([0.0])]
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))

    def step():
        optimizer.apply_gradients([(tf.constant([1.0]), w) for w in weights])

    checkpoint = tf.train.Checkpoint(weights=weights, optimizer=optimizer)
    repl.schedule(step, num_steps=3)
    repl.join()
    path = checkpoint.write(tempfile.mkdtemp() + "/saved")
    for is_last in (False, True):
        repl.schedule(step, num_steps=3)
        repl.join()
        if not is_last:
            checkpoint.read(path)
    return [*(float(w[0]) for w in weights), int(optimizer.iterations)]


@case
def weight_elsewhere():
    """A variable that no server holds cannot be updated there."""
    repl = MultiWorkerAsyncReplicator()
    weight = tf.Variable(1.0, name="kernel")
    with repl.context():
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(value):
        optimizer.apply_gradients([(value, weight)])

    repl.run(step, repl.make_input_iterator(by_pipeline))


@case
def results():
    """run() returns the last result of every replica of every worker."""
    repl = MultiWorkerAsyncReplicator(num_replicas=4)

    def step(value):
        context = replicator.get_replica_context()
        total = replicator.all_sum(value)
        sizes = (context.num_replicas, context.num_replicas_in_sync)
        return context.replica_id, value, total, tf.constant(sizes)

    inputs = repl.make_input_iterator(by_pipeline, InputReplicationMode.PER_REPLICA)
    ids, values, totals, sizes = repl.run(step, inputs)
    fixed = repl.run(
        lambda x: x * 2, replicator.PerReplica([tf.constant(v) for v in range(4)])
    )
    return {
        "ids": [int(v) for v in ids],
        "values": [float(v) for v in values],
        "totals": [float(v) for v in totals],
        "sizes": [v.numpy().tolist() for v in sizes],
        "fixed": [int(v) for v in fixed],
        "explained": repl.explain(),
    }


@case
def end_of_data():
    """The end of the data is an error; a rewind starts again, and counts continue."""
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))

    def step(value):
        optimizer.apply_gradients([(value, weight)])

    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))
    repl.run(step, inputs)
    try:
        repl.run(step, inputs)
    except tf.errors.OutOfRangeError:
        inputs.reinitialize()
        repl.run(step, inputs)
        return [float(weight.numpy()), int(optimizer.iterations.numpy())]
    return "no error"


@case
def stock():
    repl = replicator.create("tf_parameter_server", num_replicas=2)
    with repl.context():
        weight = tf.Variable(4.0)
        counter = tf.Variable(0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(target):
        with tf.GradientTape() as tape:
            loss = (weight - target) ** 2
        grad = tape.gradient(loss, weight)
        optimizer.apply_gradients([(grad, weight)])
        counter.assign_add(1)
        return {"loss": loss, "nothing": None}

    inputs = repl.make_input_iterator(by_pipeline)
    first = repl.run(step, inputs)
    repl.schedule(step, inputs, num_steps=10)
    repl.schedule(step, inputs, num_steps=10)
    repl.join()
    last = repl.run(step, inputs)
    repl.assert_in_sync()
    fixed = repl.run(
        lambda x: x + 1, replicator.PerReplica([tf.constant(v) for v in (1, 2)])
    )
    return {
        "num_results": [len(last["loss"]), len(last["nothing"])],
        "first": float(first["loss"][0]),
        "last": float(repl.reduce("mean", last["loss"])),
        "num_steps": int(counter.numpy()),
        "num_counted": int(optimizer.iterations.numpy()),
        "fixed": sorted(int(v) for v in fixed),
        "explained": repl.explain(),
    }


def _stock(num_replicas=2):
    return replicator.create("tf_parameter_server", num_replicas=num_replicas)


# Misuse; ``test_async.py`` has the messages.
CASES |= {
    "single_pipeline": lambda: MultiWorkerAsyncReplicator().make_input_iterator(
        by_pipeline, InputReplicationMode.SINGLE
    ),
    "loop_over_inputs": lambda: next(
        MultiWorkerAsyncReplicator().make_input_iterator(by_pipeline)
    ),
    "schedule_as_a_coordinator": lambda: MultiWorkerAsyncReplicator().schedule(
        tf.identity, args=(1,)
    ),
    "uneven_replicas": lambda: MultiWorkerAsyncReplicator(num_replicas=3),
    "refused_option": lambda: MultiWorkerAsyncReplicator().wrap_optimizer(
        keras.optimizers.SGD(1.0), accumulation_steps=2
    ),
    "stock_pipeline_per_replica": lambda: _stock().make_input_iterator(
        by_pipeline, InputReplicationMode.PER_REPLICA
    ),
    "stock_loop_over_inputs": lambda: next(_stock().make_input_iterator(by_pipeline)),
    "stock_replicas": lambda: _stock(4),
}
