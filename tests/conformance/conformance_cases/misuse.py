"""Misuse: each error says what was passed, why it is wrong and what to do.

Habits from elsewhere are among it; ``docs/migration.md`` quotes their messages.
"""

import functools
import re

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, share

import replicator
from replicator import errors


def assert_refused(*misuses):
    """Each is a function, the error that it must raise, a pattern of its message."""
    answers = {misuse[-1]: _unlike(*misuse) for misuse in misuses}
    wrong = {pattern: answer for pattern, answer in answers.items() if answer}
    assert not wrong, wrong


def _unlike(misuse, kind, pattern):
    """What came in place of the right error; empty if that came."""
    try:
        misuse()
    except Exception as error:  # noqa: BLE001 - whatever came is compared
        is_right = isinstance(error, kind) and re.search(pattern, str(error))
        return "" if is_right else f"{type(error).__name__}: {error}"
    return "no error"


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
        assert_refused(
            (
                functools.partial(repl.run, step),
                errors.CollectiveControlFlowError,
                "move it out",
            )
        )


@case("variable_creation_check")
def a_variable_made_in_a_step(repl):
    """The message names the variable and says where to create it."""

    def step():
        return tf.Variable(1.0, name="mine")

    assert_refused(
        (
            lambda: repl.run(step),
            errors.CreateVariableInStepError,
            r"created a variable \('mine'\).*context",
        )
    )


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

    values, error = _numbers(repl), errors.UnsynchronisedUpdateError
    assert_refused(
        (
            lambda: repl.run(update_alone, values),
            error,
            "trainable variable 'weight:0' would be updated.*wrap_optimizer",
        ),
        (
            lambda: repl.run(update_by_a_state, values),
            error,
            r"variable 'running:0' .* at \S+misuse\.py:\d+: running.*average the v",
        ),
        (
            lambda: repl.run(count, values),
            error,
            "'total:0' would be updated.*a metric.*create it with trainable=False",
        ),
    )


@case("collectives")
def misuse_of_collectives(repl):
    """Types, sources and results that would be wrong; also outside of a step."""
    count = repl.num_replicas

    def mean_of_integers():
        return replicator.all_mean(tf.constant(1))

    def broadcast_from_nowhere():
        return replicator.broadcast(tf.constant(1.0), count)

    def source_that_is_no_int():
        return replicator.broadcast(tf.constant(1.0), 0.5)

    def no_tensor():
        return {"model": object()}

    def text():
        return tf.constant("a")

    assert_refused(
        (
            lambda: repl.run(mean_of_integers),
            ValueError,
            "'mean' of int32 would be rounded",
        ),
        (
            lambda: repl.run(broadcast_from_nowhere),
            ValueError,
            r"source_replica_id \d+ is out of range: there are \d+ repl",
        ),
        (
            lambda: repl.run(source_that_is_no_int),
            TypeError,
            "source_replica_id 0.5 must be a Python int",
        ),
        (
            lambda: repl.run(no_tensor),
            TypeError,
            "step returned a 'object'; a step returns a nest of tensors",
        ),
        (
            lambda: repl.reduce("sum", repl.run(text)),
            ValueError,
            "reduce 'sum' of string is not defined; reductions take",
        ),
        (
            lambda: replicator.all_sum(tf.constant(1.0)),
            errors.CollectiveContextError,
            r"all_reduce\(\) was called in cross-replica context.*inside the step",
        ),
    )


@case("synchronous_training")
def misuse_of_optimizers(repl):
    """Of another kind, wrapped twice, without gradients, outside of a step."""
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def update_by_nothing():
        optimizer.apply_gradients([(None, weight)])
        return tf.constant(0)

    assert_refused(
        (
            lambda: repl.wrap_optimizer("sgd"),
            TypeError,
            "needs a Keras 3 optimizer, but 'str' has no 'apply'",
        ),
        (
            lambda: repl.wrap_optimizer(optimizer),
            TypeError,
            "already wrapped, <.*Optimizer of SGD>; use it as it is",
        ),
        (
            lambda: repl.run(update_by_nothing),
            ValueError,
            "got no gradient: all of them are None",
        ),
        (
            lambda: optimizer.apply_gradients([]),
            errors.CollectiveContextError,
            r"apply_gradients\(\) was called in cross-replica context",
        ),
    )


@case("fixed_inputs")
def misuse_of_fixed_inputs(repl):
    """Values of another kind or number, and steps with other arguments."""
    values = _numbers(repl)

    def step_of_two(x, y):
        return x + y

    def step_of_none():
        return tf.constant(1)

    assert_refused(
        (
            lambda: repl.run(step_of_two, (values, values)),
            TypeError,
            r"cannot be called with one argument.*x, y = batch.*run\(step_fn",
        ),
        (
            lambda: repl.run(step_of_none, values),
            TypeError,
            r"step '.*step_of_none' takes no argument, but run\(\) got inputs",
        ),
        (
            lambda: repl.run(tf.identity, args=(values,)),
            TypeError,
            r"run\(\) does not take args=; write repl.run\(step_fn, inputs",
        ),
        (
            lambda: repl.run(tf.identity, [tf.constant(1)]),
            TypeError,
            "nest of PerReplica, or None; got 'list'",
        ),
        (
            lambda: repl.run(tf.identity, replicator.PerReplica([*values, 1])),
            ValueError,
            r"have \d+ values per leaf, but there are \d+",
        ),
    )


@case("fixed_inputs", "steps_per_execution")
def misuse_of_num_steps(repl):
    """No step at all; several steps over one batch, which they would repeat."""
    assert_refused(
        (
            lambda: repl.run(tf.identity, _numbers(repl), num_steps=0),
            ValueError,
            "num_steps 0 must be an integer of at least",
        ),
        (
            lambda: repl.run(tf.identity, _numbers(repl), num_steps=2),
            ValueError,
            "num_steps 2 needs a new batch.*InputIterator",
        ),
    )


@case("input_per_worker")
def misuse_of_input_functions(repl):
    """A dataset in their place, no argument, no dataset, a mode that is a string."""
    data = tf.data.Dataset.range(3)
    assert_refused(
        (
            lambda: repl.make_input_iterator(data),
            TypeError,
            r"takes a function .* but got a '_RangeDataset'; write def input_fn\(ctx\)",
        ),
        (
            lambda: repl.make_input_iterator(lambda: data),
            TypeError,
            "calls '.*<lambda>' with one argument, an InputContext, which",
        ),
        (
            lambda: repl.make_input_iterator(lambda _: [1, 2]),
            TypeError,
            "input_fn returned 'list', but it must return a tf.data.",
        ),
        (
            lambda: repl.make_input_iterator(lambda _: data, "SINGLE"),
            TypeError,
            "mode 'SINGLE' is not one of .*PER_REPL",
        ),
    )


@case("input_per_worker", "synchronous_training", min_replicas=2)
def a_global_batch_that_does_not_divide(repl):
    """Both numbers are named; nothing is rounded."""

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(2 * repl.num_replicas + 1)
        return tf.data.Dataset.range(8).batch(size)

    assert_refused(
        (
            lambda: repl.make_input_iterator(input_fn),
            errors.SplitBatchError,
            r"is not divisible by num_replicas \d+",
        )
    )
