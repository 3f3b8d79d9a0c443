"""Variables between and inside steps, random streams, new shapes, explain."""

import re
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.cases import case, share

import replicator
from replicator import InputReplicationMode


def _ones(repl, size=2):
    """Replica r gets r + 1 everywhere."""
    return share(
        repl, [np.full([size], r + 1, np.float32) for r in range(repl.num_replicas)]
    )


def _linear(repl):
    """A step whose gradient is its input; rate and momentum are 0.5."""
    with repl.context():
        weight = tf.Variable([1.0, 2.0], name="weight")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5, momentum=0.5))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    return weight, optimizer, step


def _mean_operand(topology):
    return (topology.num_replicas + 1) / 2


@case(
    "synchronous_training",
    "replica_local_state",
    reference=lambda t: {
        "counters": np.int64([2, 2]),
        "seen": np.float32(2 * _mean_operand(t)),
    },
)
def writes_that_nothing_reads(repl):
    """Of the same value they happen once, of others on each replica's own copy."""
    with repl.context():
        counters = [tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2)]
        seen = tf.Variable(0.0, trainable=False)

    def step(x):
        counters[0].assign_add(1, read_value=False)
        one = tf.constant(1, tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=counters[1].handle, value=one)
        seen.assign_add(x[0], read_value=False)

    for _ in range(2):
        repl.run(step, _ones(repl))
    repl.assert_in_sync()
    return {
        "counters": np.int64([counter.numpy() for counter in counters]),
        "seen": seen.numpy(),
    }


def _statistics(topology):
    means = np.arange(topology.num_replicas, dtype=np.float32)
    return {
        "copies": replicator.PerReplica(list(means + 1)),
        "outside": np.float32(means.mean() + 1),
        "after": replicator.PerReplica(list(means + 6)),
    }


@case("replica_local_state", reference=_statistics)
def local_batch_norm_statistics(repl):
    """Each replica keeps its own; outside, a read is the mean, a write sets all."""
    with repl.context():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    xs = share(
        repl, [np.full((4, 1), 2 * r + 2, np.float32) for r in range(repl.num_replicas)]
    )

    def step(x):
        return tf.reduce_mean(layer(x, training=True))

    def read():
        return tf.reshape(layer.moving_mean.value, [])

    repl.run(step, xs)
    copies = repl.run(read)
    outside = layer.moving_mean.numpy()[0]
    layer.moving_mean.assign([10.0])
    repl.run(step, xs)
    return {"copies": copies, "outside": outside, "after": repl.run(read)}


@case(
    "outside_changes",
    reference=lambda t: replicator.PerReplica(
        [np.float32(300 * (r + 1)) for r in range(t.num_replicas)]
    ),
)
def weights_set_outside_reach_every_replica(repl):
    """After an assignment between steps, the next step reads it on all replicas."""
    weight, _, step = _linear(repl)
    repl.run(step, _ones(repl))
    weight.assign([100.0, 200.0])

    def read(x):  # without an update, which another worker could see
        return tf.reduce_sum(weight * x)

    losses = repl.run(read, _ones(repl))
    repl.assert_in_sync()
    return losses


def _four_steps(_):
    """On the whole batch, by hand; rate and momentum are 0.5."""
    weight, velocity = np.array([1.0, 2.0]), np.zeros(2)
    for x in np.split(_features()[0], 4):
        y = np.tanh(x @ weight)
        gradient = np.mean((1 - y**2)[:, None] * x, axis=0)
        velocity = 0.5 * velocity - 0.5 * gradient
        weight = weight + velocity
    return {"loss": np.float32(y.mean()), "weight": np.float32(weight)}


@case("steps_per_execution", "synchronous_training", reference=_four_steps)
def steps_per_execution_equal_as_many_runs(repl):
    """run(num_steps=4) gives the weights and the last loss of four runs."""
    weight, optimizer, _ = _linear(repl)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(tf.linalg.matvec(x, weight)))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    inputs = repl.make_input_iterator(split_in_order(8, *_features()))
    out = repl.run(step, inputs, num_steps=4)
    return {"loss": repl.reduce("mean", out), "weight": weight.numpy()}


def _features():
    rng = np.random.default_rng(2)
    return (rng.normal(size=(32, 2)).astype(np.float32),)


def split_in_order(global_batch_size, *arrays):
    """An input function whose steps see the same global batch on any backend."""

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(global_batch_size)
        data = arrays[0] if len(arrays) == 1 else arrays
        return (
            tf.data.Dataset.from_tensor_slices(data)
            .repeat()
            .batch(size, drop_remainder=True)
            .shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        )

    return input_fn


def _sums_of_finished_steps(topology):
    count = topology.num_replicas
    mean = total = 0.0
    for start in (0, count, 0):  # two steps of three, and the first of two
        mean = mean * 0.5 + start + (count - 1) / 2
        total = total * 0.5 + start * count + count * (count - 1) / 2
    each = {"mean": np.float32([mean] * 2), "sum": np.float32([total] * 2)}
    return {"errors": 2, **each}


@case(
    "end_of_data",
    "input_per_worker",
    "replica_local_state",
    "steps_per_execution",
    reference=_sums_of_finished_steps,
)
def steps_that_ended_survive_the_end_of_the_data(repl):
    """After the data of two of three steps, and again of one of two, in a branch."""
    local = {"trainable": False, "synchronization": tf.VariableSynchronization.ON_READ}
    with repl.context():
        of_all = [
            tf.Variable(tf.zeros([2]), aggregation=aggregation, **local)
            for aggregation in (
                tf.VariableAggregation.MEAN,
                tf.VariableAggregation.SUM,
            )
        ]

    def write(x):
        for variable in of_all:
            variable.assign(variable * 0.5 + tf.cast(x, tf.float32))
        return x

    def branch(x):
        return tf.cond(x >= 0, lambda: write(x), lambda: x)

    num_errors = 0
    for step, num_steps, finished in ((write, 3, 2), (branch, 2, 1)):

        def input_fn(ctx, size=finished * repl.num_replicas):
            numbers = tf.data.Dataset.range(size)
            return numbers.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)

        try:
            repl.run(step, repl.make_input_iterator(input_fn), num_steps=num_steps)
        except tf.errors.OutOfRangeError:
            num_errors += 1
    mean, total = of_all
    return {"errors": num_errors, "mean": mean.numpy(), "sum": total.numpy()}


@case(
    "new_shapes",
    "synchronous_training",
    reference=lambda _: {
        # Gradient 1 each step, rate and momentum 0.5: 1 - 0.5 - 0.75 - 0.875.
        "weight": np.float32([-1.125, -0.125]),
        "num_updates": np.int64(3),
    },
)
def new_shapes_keep_the_state(repl):
    """A batch of another shape retraces the step, and training continues."""
    weight, optimizer, _ = _linear(repl)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    for size in (2, 3, 2):
        repl.run(
            step, share(repl, [np.ones((size, 2), np.float32)] * repl.num_replicas)
        )
    return {
        "weight": weight.numpy(),
        "num_updates": np.int64(optimizer.iterations.numpy()),
    }


def _sources(repl):
    with repl.context():
        layer = keras.layers.Dropout(0.5, seed=3)
        generator = tf.random.Generator.from_seed(5)

    @tf.function
    def nested():
        return tf.random.normal([16])

    def loop_body():
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x + tf.random.uniform([16])),
            (0, tf.zeros([16])),
        )[1]

    return {
        "op": lambda: tf.random.uniform([16]),
        "loop_body": loop_body,
        "nested_function": nested,
        "unseeded_keras": lambda: keras.random.normal([16]),
        "keras_dropout": lambda: layer(tf.ones([64]), training=True),
        "generator": lambda: generator.uniform([16]),
    }


def _check_streams(topology, joined):
    first, again = joined
    for name in first[0]:
        draws = [step[name] for step in first]
        seen = {value.tobytes() for draw in draws for value in draw}
        assert len(draws) * topology.num_replicas == len(seen), name
        repeated = [step[name] for step in again]
        for draw, other in zip(draws, repeated, strict=True):
            np.testing.assert_array_equal(list(draw), list(other), err_msg=name)


@case("random_streams", check=_check_streams)
def random_streams(repl):
    """All replicas and steps draw different numbers; a seed reproduces them."""
    rounds = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        sources = _sources(repl)

        def step(sources=sources):
            return {name: draw() for name, draw in sources.items()}

        rounds.append([repl.run(step) for _ in range(2)])
    return rounds


@case("explained_plan", check=lambda _, lines: _check_plan(lines))
def explain_shows_the_plan(repl):
    """After a step was traced, explain() lists its collectives and their bytes."""

    def step():
        return replicator.all_sum(tf.zeros([25]))

    repl.run(step)
    # Which device combines is a worker's own fact; the plan is that of all of them.
    mine = repl.explain().partition("explain_shows_the_plan")[2].splitlines()
    return [line for line in mine if "bytes" in line and "owner" not in line][:1]


def _check_plan(lines):
    assert ["all_reduce(sum): 1 tensors, 100 bytes" in line for line in lines] == [True]


@case(
    "input_per_replica",
    "collectives",
    reference=lambda t: replicator.PerReplica(
        [np.float32(t.num_replicas)] * t.num_replicas
    ),
)
def nested_functions_and_loops_without_collectives(repl):
    """Inner tf.functions, while loops and conds run, and may read variables."""
    with repl.context():
        offset = tf.Variable(1.0, trainable=False)

    @tf.function
    def halve(x):
        return tf.cond(x > 0, lambda: x / 2, lambda: -x)

    def step(x):
        for _ in tf.range(3):
            x = halve(x)
        return replicator.all_sum(x * offset)

    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.constant(8.0)).repeat(),
        InputReplicationMode.PER_REPLICA,
    )
    return repl.run(step, inputs)


@case("fixed_inputs", reference=lambda _: np.bool_(False))
def ends_on_sigterm(repl):
    """The termination signal does what the program says, or ends the process."""
    del repl
    status = Path("/proc/self/status").read_text(encoding="ascii")
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16)
    return np.bool_(caught >> (signal.SIGTERM - 1) & 1)
