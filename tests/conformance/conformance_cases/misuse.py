"""Misuse: each error says what was passed, why it is wrong and what to do.

Habits from elsewhere are among it; ``docs/migration.md`` quotes their messages.
"""

import contextlib
import re

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.cases import case, share

import replicator


@contextlib.contextmanager
def refused(kind, pattern):
    """Inside, the error must come; as of ``pytest``, which clusters do not import."""
    message = f"no {kind.__name__}"
    try:
        yield
    except kind as error:
        message = str(error)
    assert re.search(pattern, message), message


def _numbers(repl):
    return share(repl, [np.float32([r]) for r in range(repl.num_replicas)])


@case("control_flow_check")
def collectives_in_control_flow(repl):
    """In a branch, a loop or a nested function, each raises an actionable error."""

    def in_cond():
        x = tf.random.uniform([])
        return tf.cond(x > 0.5, lambda: replicator.all_sum(x), lambda: x)

    def in_while():
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: [i + 1, replicator.all_sum(x)],
            [tf.constant(0), tf.constant(1.0)],
        )

    @tf.function
    def inner(x):
        return replicator.all_sum(x)

    def in_function():
        return inner(tf.constant(1.0))

    for step in (in_cond, in_while, in_function):
        with refused(replicator.CollectiveControlFlowError, "move it out"):
            repl.run(step)


@case("variable_creation_check")
def a_variable_made_in_a_step(repl):
    """The message names the variable and says where to create it."""

    def step():
        return tf.Variable(1.0, name="mine")

    with refused(
        replicator.CreateVariableInStepError, r"a variable \('mine'\).*context"
    ):
        repl.run(step)


@case("unsynchronized_update_check", min_replicas=2)
def updates_that_are_not_averaged(repl):
    """By a stock optimizer, a state of each replica, or a metric that is trainable."""
    with repl.context():
        weight = tf.Variable([1.0], name="weight")
        running = tf.Variable([0.0], trainable=False, name="running")
        total = tf.Variable([0.0], name="total")
        stock = keras.optimizers.SGD(0.1)
        stock.build([weight])
        wrapped = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def update_alone(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        stock.apply_gradients([(tape.gradient(loss, weight), weight)])

    def update_by_a_state(x):
        running.assign(0.9 * running + 0.1 * x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * (x - running))
        wrapped.apply_gradients([(tape.gradient(loss, weight), weight)])

    def count(x):
        total.assign_add(x)

    for step, pattern in (
        (update_alone, "trainable variable 'weight:0' would be upd.*wrap_optimizer"),
        (
            update_by_a_state,
            r"'running:0' .* at \S+misuse\.py:\d+: .*average the v",
        ),
        (count, "'total:0' would be updated.*a metric.*create it with trainable=False"),
    ):
        with refused(replicator.UnsynchronisedUpdateError, pattern):
            repl.run(step, _numbers(repl))


@case("collectives")
def misuse_of_collectives(repl):
    """Types, sources and results that would be wrong; also outside of a step."""
    count = repl.num_replicas
    with refused(ValueError, "'mean' of int32 would be rounded"):
        repl.run(lambda: replicator.all_mean(tf.constant(1)))
    with refused(ValueError, r"source_replica_id \d+ is out of range: there are \d+ r"):
        repl.run(lambda: replicator.broadcast(tf.constant(1.0), count))
    with refused(TypeError, "source_replica_id 0.5 must be a Python int"):
        repl.run(lambda: replicator.broadcast(tf.constant(1.0), 0.5))
    with refused(TypeError, "returned a 'object'; a step returns a nest of tensors"):
        repl.run(lambda: {"model": object()})
    words = repl.run(lambda: tf.constant("a"))
    with refused(ValueError, "reduce 'sum' of string is not defined; reductions take"):
        repl.reduce("sum", words)
    with refused(
        replicator.CollectiveContextError,
        r"all_reduce\(\) was called in cross-replica context.*inside the step",
    ):
        replicator.all_sum(tf.constant(1.0))


@case("synchronous_training")
def misuse_of_optimizers(repl):
    """Of another kind, wrapped twice, without gradients, outside of a step."""
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step():
        optimizer.apply_gradients([(None, weight)])
        return tf.constant(0)

    with refused(TypeError, "needs a Keras 3 optimizer, but 'str' has no 'apply'"):
        repl.wrap_optimizer("sgd")
    with refused(TypeError, "already wrapped, <.*Optimizer of SGD>; use it as it is"):
        repl.wrap_optimizer(optimizer)
    with refused(ValueError, "got no gradient: all of them are None"):
        repl.run(step)
    with refused(
        replicator.CollectiveContextError,
        r"apply_gradients\(\) was called in cross-replica context",
    ):
        optimizer.apply_gradients([])


@case("fixed_inputs")
def misuse_of_fixed_inputs(repl):
    """Values of another kind or number, and steps with other arguments."""
    values = _numbers(repl)

    def step_of_two(x, y):
        return x + y

    def step_of_none():
        return tf.constant(1)

    with refused(TypeError, r"called with one arg.*x, y = batch.*run\(step_fn"):
        repl.run(step_of_two, (values, values))
    with refused(TypeError, r"step '.*none' takes no argument, but run\(\) got inputs"):
        repl.run(step_of_none, values)
    with refused(TypeError, r"does not take args=; write repl.run\(step_fn, inputs"):
        repl.run(tf.identity, args=(values,))
    with refused(TypeError, "nest of PerReplica, or None; got 'list'"):
        repl.run(tf.identity, [tf.constant(1)])
    with refused(ValueError, r"have \d+ values per leaf, but there are \d+"):
        repl.run(tf.identity, replicator.PerReplica([*values, *values]))


@case("fixed_inputs", "steps_per_execution")
def misuse_of_num_steps(repl):
    """No step at all; several steps over one batch, which they would repeat."""
    with refused(ValueError, "num_steps 0 must be an integer of at least"):
        repl.run(tf.identity, _numbers(repl), num_steps=0)
    with refused(ValueError, "num_steps 2 needs a new batch.*InputIterator"):
        repl.run(tf.identity, _numbers(repl), num_steps=2)


@case("input_per_worker")
def misuse_of_input_functions(repl):
    """A dataset in their place, no argument, no dataset, a mode that is a string."""
    data = tf.data.Dataset.range(3)
    with refused(TypeError, r"a function .* got a '_RangeDataset'; write def input_fn"):
        repl.make_input_iterator(data)
    with refused(TypeError, "calls '.*<lambda>' with one argument, an InputContext"):
        repl.make_input_iterator(lambda: data)
    with refused(TypeError, "input_fn returned 'list', but it must return a tf.data."):
        repl.make_input_iterator(lambda _: [1, 2])
    with refused(TypeError, "mode 'SINGLE' is not one of .*PER_REPL"):
        repl.make_input_iterator(lambda _: data, "SINGLE")


@case("input_per_worker", "synchronous_training", min_replicas=2)
def a_global_batch_that_does_not_divide(repl):
    """Both numbers are named; nothing is rounded."""

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(2 * repl.num_replicas + 1)
        return tf.data.Dataset.range(8).batch(size)

    with refused(replicator.SplitBatchError, r"is not divisible by num_replicas \d+"):
        repl.make_input_iterator(input_fn)
