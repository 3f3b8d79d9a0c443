"""Habits from elsewhere: they work, or the message says what to write here.

``docs/migration.md`` quotes the messages.
"""

import re
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, on_every, share

import replicator
from replicator import errors

_OF_PIPELINE = 1_000


@case(
    "input_per_worker",
    raises=(
        TypeError,
        r"takes a function .* but got a '_RangeDataset'; write def input_fn\(ctx\): r",
    ),
)
def a_dataset_in_place_of_its_function(repl):
    """The message shows the function."""
    repl.make_input_iterator(tf.data.Dataset.range(3))


@case(
    "input_per_worker",
    raises=(TypeError, r"calls '.*<lambda>' with one argument, an InputContext, which"),
)
def an_input_function_without_an_argument(repl):
    """The context is passed even if the function does not use it."""
    repl.make_input_iterator(lambda: tf.data.Dataset.range(3))


@case(
    "fixed_inputs",
    raises=(
        TypeError,
        r"step '.*step' cannot be called with one argument.*x, y = batch.*run\(step_fn",
    ),
)
def a_step_of_two_arguments(repl):
    """A batch is one argument, whatever its structure."""

    def step(x, y):
        return x + y

    values = share(repl, [np.float32(1)] * repl.num_replicas)
    repl.run(step, (values, values))


@case(
    "fixed_inputs",
    raises=(TypeError, r"run\(\) does not take args=; write repl.run\(step_fn, inputs"),
)
def arguments_as_of_a_strategy(repl):
    """strategy.run(step, args=(x, y)) is written differently here."""

    def step(batch):
        return batch

    repl.run(step, args=(share(repl, [np.float32(1)] * repl.num_replicas),))


@case(
    "fixed_inputs",
    raises=(TypeError, r"step '.*step' takes no argument, but run\(\) got inputs"),
)
def inputs_for_a_step_that_takes_none(repl):
    """Inputs for a step without arguments raise an error as well."""

    def step():
        return tf.constant(1)

    repl.run(step, share(repl, [np.float32(1)] * repl.num_replicas))


@case(
    "collectives",
    reference=lambda t: {
        "min": np.bool_(t.num_replicas == 1),
        "max": np.bool_(True),
    },
)
def reduce_of_bools(repl):
    """As inside a step: any and all."""

    def step():
        return tf.equal(replicator.get_replica_context().replica_id, 0)

    out = repl.run(step)
    return {op: repl.reduce(op, out) for op in ("min", "max")}


@case(
    "collectives",
    raises=(ValueError, r"reduce 'sum' of string is not defined; reductions take"),
)
def reduce_of_strings(repl):
    """The same message as inside a step."""

    def step():
        return tf.constant("a")

    repl.reduce("sum", repl.run(step))


_RAGGED = [[[1, 2], [3]], [[4], [5, 6, 7], [8]]]
_SPARSE = [[[0, 1], [0, 0]], [[2, 0], [0, 3]]]


@case(
    "fixed_inputs",
    "ragged_inputs",
    reference=lambda t: {
        "sum": replicator.PerReplica(
            [np.int32([6, 30][r % 2]) for r in range(t.num_replicas)]
        ),
        "sparse": replicator.PerReplica(
            [np.int32([1, 5][r % 2]) for r in range(t.num_replicas)]
        ),
    },
)
def ragged_and_sparse_values(repl):
    """Each replica gets its own value, whose number of rows may differ."""
    values = [tf.ragged.constant(_RAGGED[r % 2]) for r in range(repl.num_replicas)]
    sparse = [tf.sparse.from_dense(_SPARSE[r % 2]) for r in range(repl.num_replicas)]

    def step(batch):
        x, y = batch
        return {"sum": tf.reduce_sum(x), "sparse": tf.sparse.reduce_sum(y)}

    return repl.run(step, (share(repl, values), share(repl, sparse)))


def _numbered(ctx, num_batches):
    start = _OF_PIPELINE * ctx.input_pipeline_id
    return tf.data.Dataset.range(start, start + num_batches)


def _place(topology, step):
    """What every replica reads in a step of one pipeline per worker."""
    num_local = topology.num_local_replicas
    return replicator.PerReplica(
        [
            np.int64(_OF_PIPELINE * (r // num_local) + step * num_local + r % num_local)
            for r in range(topology.num_replicas)
        ]
    )


@case(
    "input_per_worker",
    "batches_outside_steps",
    reference=lambda t: {
        "next": _place(t, 0),
        "run": _place(t, 1),
        "loop": [_place(t, 2), _place(t, 3)],
        "num_steps": on_every(t, np.int64(4)),
        "again": _place(t, 0),
    },
)
def an_iterator_of_python(repl):
    """next(), for and run() share one position and the same end."""
    num_batches = 4 * repl.num_replicas // repl.num_workers
    inputs = repl.make_input_iterator(lambda ctx: _numbered(ctx, num_batches))

    def step(x):
        return tf.identity(x)

    first = next(inputs)
    second = repl.run(step, inputs)
    rest = [repl.run(step, batch) for batch in inputs]
    assert [] == list(inputs), "an iterator of Python stays at its end"
    counted = [np.int64(inputs.num_steps)] * repl.num_local_replicas
    inputs.reinitialize()
    return {
        "next": first,
        "run": second,
        "loop": rest,
        "num_steps": replicator.PerReplica(counted),
        "again": next(inputs),
    }


@case(
    "input_per_worker",
    "batches_outside_steps",
    "whole_steps",
    reference=lambda t: [_place(t, 0), _place(t, 1)],
)
def a_loop_ends_together(repl):
    """If one worker has fewer batches, the loops of all end after the same step."""
    num_local = repl.num_replicas // repl.num_workers
    inputs = repl.make_input_iterator(
        lambda ctx: _numbered(ctx, (2 + ctx.input_pipeline_id) * num_local)
    )

    def step(x):
        replicator.all_sum(x)
        return tf.identity(x)

    return [repl.run(step, batch) for batch in inputs]


@case("synchronous_training", like_single_device=True)
def an_update_in_the_spelling_of_keras(repl):
    """optimizer.apply(grads, variables) averages as apply_gradients does."""
    with repl.context():
        weight = tf.Variable([1.0, 2.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))
    features = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    size = len(features) // repl.num_replicas
    parts = [features[r * size : (r + 1) * size] for r in range(repl.num_replicas)]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weight) ** 2)
        optimizer.apply([tape.gradient(loss, weight)], [weight])

    for _ in range(3):
        repl.run(step, share(repl, parts))
    return weight.numpy()


@case(
    "unsynchronized_update_check",
    raises=(
        errors.UnsynchronisedUpdateError,
        r"'total:0' would be updated.*a metric.*create it with trainable=False",
    ),
    min_replicas=2,
)
def a_metric_that_is_trainable_by_default(repl):
    """tf.Variable is trainable by default."""
    with repl.context():
        total = tf.Variable(0.0, name="total")

    def step(x):
        total.assign_add(x)

    repl.run(step, share(repl, [np.float32(r) for r in range(repl.num_replicas)]))


@case("synchronous_training", reference=lambda _: {"is_compiled": np.bool_(True)})
def compile_with_a_wrapped_optimizer(repl):
    """It is a Keras optimizer, of the class that was wrapped."""
    with repl.context():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse")
    is_compiled = model.optimizer is optimizer and isinstance(
        model.optimizer, keras.optimizers.SGD
    )
    return {"is_compiled": np.bool_(is_compiled)}


@case(
    "synchronous_training",
    raises=(TypeError, r"already wrapped, <.*Optimizer of SGD>; use it as it is"),
)
def an_optimizer_that_is_wrapped_twice(repl):
    """It would average twice."""
    repl.wrap_optimizer(repl.wrap_optimizer(keras.optimizers.SGD(0.1)))


@case("fixed_inputs", reference=lambda _: {"is_caught": np.bool_(False)})
def ends_on_sigterm(repl):
    """The termination signal does what the program says, or ends the process."""
    del repl
    status = Path("/proc/self/status").read_text(encoding="ascii")
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1]
    is_caught = int(caught, 16) >> (signal.SIGTERM - 1) & 1
    return {"is_caught": np.bool_(is_caught)}
