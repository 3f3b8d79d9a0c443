"""Cases of two workers and two servers, run by the chief of a test cluster."""

import tempfile

import keras
import numpy as np
import tensorflow as tf
import tiny_models

import replicator
from replicator import InputReplicationMode

NUM_STEPS = 60
NUM_CALLS = 3
MOST_CALLS = 50
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def make(**options):
    return replicator.create("async", **options)


def by_pipeline(ctx):
    """Batches of integers: 1 from pipeline 0, 2 from pipeline 1, and so on."""
    return tf.data.Dataset.from_tensors(float(ctx.input_pipeline_id + 1)).repeat()


def sgd(repl, *values):
    """Weights, and an optimizer that subtracts whole numbers exactly."""
    with repl.context():
        weights = [tf.Variable(value, name="kernel") for value in values]
        return weights, repl.wrap_optimizer(keras.optimizers.SGD(1.0))


def hammer(make_grad):
    """Updates four variables by whole-number gradients from all workers at once."""
    repl = make()
    weights, optimizer = sgd(repl, *[tf.zeros([n, 2]) for n in (3, 40, 5, 7)])
    with repl.context():
        counter = tf.Variable(0, trainable=False)

    def step(value):
        optimizer.apply_gradients([(make_grad(w, value), w) for w in weights])
        counter.assign_add(tf.cast(value, tf.int32), read_value=False)

    inputs = repl.make_input_iterator(by_pipeline)
    for _ in range(NUM_CALLS):
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
    repl.join()
    found = {
        "weights": [np.unique(w.numpy()).tolist() for w in weights],
        "num_updates": int(optimizer.iterations),
        "counter": int(counter),
        "num_servers": len({w.device for w in weights}),
        "is_fused": optimizer.uses_fused_update,
        "num_counted": sum(repl.staleness().histogram.values()),
    }
    for _ in range(MOST_CALLS):
        if repl.staleness().max:
            break
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
        repl.join()
    return found | {"max_staleness": repl.staleness().max}


@case
def dense():
    """A gradient of one integer, which has to wait for the weight."""
    return hammer(lambda weight, value: 0.0 * weight + value)


@case
def sparse():
    """A gradient that names every row, and the first one twice."""

    def slices(weight, value):
        rows = tf.concat([tf.range(weight.shape[0]), [0]], axis=0)
        values = tf.fill([weight.shape[0] + 1, 2], value)
        return tf.IndexedSlices(values, rows, tf.constant(weight.shape.as_list()))

    return hammer(slices)


@case
def sharded_embedding():
    """Rows 0, 1 and 4 lose 2, 1 and 1 in every step, on the servers where they are."""
    repl = make()
    with repl.context():
        layer = replicator.ShardedEmbedding(5, 2, num_parts=2, initializer="zeros")
    _, optimizer = sgd(repl)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([0, 0, 1, 4])))
        parts = layer.parts
        gradients = tape.gradient(loss, [part.value for part in parts])
        optimizer.apply_gradients(zip(gradients, parts, strict=True))

    repl.schedule(step, num_steps=NUM_STEPS)
    repl.join()
    return [
        layer.table().numpy().tolist(),
        len({part.value.device for part in layer.parts}),
    ]


@case
def linear_momentum():
    """Rate 1 and momentum 1: whole gradients give whole slots, which show each step."""
    repl = make()
    with repl.context():
        weight = tf.Variable(tf.zeros([4]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0, momentum=1.0))

    def step(value):
        optimizer.apply_gradients([(tf.fill([4], value), weight)])

    repl.run(step, repl.make_input_iterator(by_pipeline), num_steps=NUM_STEPS)
    return np.unique(optimizer.wrapped.momentums[0].numpy()).tolist()


@case
def adam():
    """Two weights on two servers; the last half of the updates is made again."""
    repl = make()
    with repl.context():
        weights = [tf.Variable([0.0]), tf.Variable([0.0])]
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))

    def step():
        optimizer.apply_gradients([(tf.constant([1.0]), w) for w in weights])

    checkpoint = tf.train.Checkpoint(weights=weights, optimizer=optimizer)
    repl.run(step, num_steps=3)
    path = checkpoint.write(tempfile.mkdtemp() + "/saved")
    repl.run(step, num_steps=3)
    checkpoint.read(path)
    repl.run(step, num_steps=3)
    return [*(float(w[0]) for w in weights), int(optimizer.iterations)]


@case
def results():
    """run() returns the last result of every replica of every worker."""
    repl = make(num_replicas=4)
    (weight,), optimizer = sgd(repl, [0.0])

    def step(value):
        context = replicator.get_replica_context()
        optimizer.apply_gradients([(tf.reshape(value, [1]), weight)])
        sizes = (context.num_replicas, context.num_replicas_in_sync)
        return (
            context.replica_id,
            value,
            replicator.all_sum(value),
            tf.constant(sizes),
        )

    inputs = repl.make_input_iterator(by_pipeline, InputReplicationMode.PER_REPLICA)
    outputs = repl.run(step, inputs)
    fixed = repl.run(
        lambda x: x * 2, replicator.PerReplica([tf.constant(v) for v in range(4)])
    )
    return {
        "outputs": [[v.numpy().tolist() for v in values] for values in outputs],
        "fixed": [int(v) for v in fixed],
        "weight": float(weight[0]),
        "explained": repl.explain(),
    }


@case
def end_of_data():
    """The end of the data is an error; a rewind starts again, and counts continue."""
    repl = make()
    (weight,), optimizer = sgd(repl, 0.0)

    def step(value):
        optimizer.apply_gradients([(value, weight)])

    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))
    repl.run(step, inputs)
    try:
        repl.run(step, inputs)
    except tf.errors.OutOfRangeError:
        inputs.reinitialize()
        repl.run(step, inputs)
        return [float(weight), int(optimizer.iterations)]
    return "no error"


@case
def failed_step():
    """What is read after a step that failed on one worker, and what a reset does."""
    repl = make()
    with repl.context():
        state, limit = (tf.Variable(value, trainable=False) for value in (0.0, 9.0))

    def step(x):
        added = state.assign(state + x)
        with tf.control_dependencies([added]):
            tf.debugging.assert_less(x, limit)
        return state.read_value()

    inputs = repl.make_input_iterator(by_pipeline)
    repl.run(step, inputs)
    limit.assign(2.0)
    try:
        repl.run(step, inputs)
    except tf.errors.InvalidArgumentError:
        limit.assign(9.0)
    failed = float(state)
    state.assign(failed)
    reset = [float(value) for value in repl.run(step, inputs)]
    return [failed, reset, inputs.num_steps]


def trained(repl, num_steps):
    training = tiny_models.Training(repl, "batch norm")
    if num_steps:
        training.run(num_steps, num_steps_per_run=num_steps)
    return training


def state_of(training):
    variables = [*training.model.variables, *training.optimizer.wrapped.variables]
    return [np.asarray(v).tolist() for v in variables]


@case
def checkpoints():
    """What other backends restore, and what this one restores of theirs."""
    here = "/job:chief/replica:0/task:0/device:CPU:0"
    others = {
        "in_graph": lambda: replicator.create(
            "in_graph", num_replicas=2, devices=[here, here]
        ),
        "async": make,
    }
    training, found = trained(make(), 4), {}
    for name, make_other in others.items():
        folder = tempfile.mkdtemp()
        training.make_manager(folder, inputs=training.inputs).save()
        there = trained(make_other(), 0)
        restored = there.make_manager(folder, inputs=there.inputs).restore()
        is_same_there = state_of(there) == state_of(training)
        back = trained(make_other(), 3)
        again = trained(make(), 0)
        again.make_manager(folder).restore(back.make_manager(tempfile.mkdtemp()).save())
        is_same_back = state_of(again) == state_of(back)
        position = restored.input_position
        found[name] = [restored.step, position, is_same_there, is_same_back]
    return found


def weight_elsewhere():
    repl = make()
    weight, (_, optimizer) = tf.Variable(1.0, name="kernel"), sgd(repl)
    repl.run(lambda: optimizer.apply_gradients([(1.0, weight)]))


def _stock(num_replicas=2):
    return replicator.create("tf_parameter_server", num_replicas=num_replicas)


# ``test_async.py`` has the messages.
MISUSE = {
    "a weight elsewhere": weight_elsewhere,
    "one pipeline": lambda: make().make_input_iterator(
        by_pipeline, InputReplicationMode.SINGLE
    ),
    "prefetching": lambda: make().make_input_iterator(
        by_pipeline, prefetch_to_device=2
    ),
    "a loop over inputs": lambda: next(make().make_input_iterator(by_pipeline)),
    "as a coordinator": lambda: make().schedule(tf.identity, args=(1,)),
    "uneven replicas": lambda: make(num_replicas=3),
    "accumulation": lambda: make().wrap_optimizer(
        keras.optimizers.SGD(1.0), accumulation_steps=2
    ),
    "stock, a pipeline per replica": lambda: _stock().make_input_iterator(
        by_pipeline, InputReplicationMode.PER_REPLICA
    ),
    "stock, a loop over inputs": lambda: next(
        _stock().make_input_iterator(by_pipeline)
    ),
    "stock, replicas": lambda: _stock(4),
}


@case
def misuse():
    return {name: _error_of(call) for name, call in MISUSE.items()}


def _error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 (the test has its type and message)
        return f"{type(error).__name__}: {error}"
    return "no error"
