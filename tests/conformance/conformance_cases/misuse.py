"""Misuse: each error says what was passed, why it is wrong and what to do."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, share

import replicator
from replicator import errors


@case("control_flow_check", reference=lambda _: {})
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

    complaints = {}
    for step in (in_cond, in_while, in_function):
        try:
            repl.run(step)
        except errors.CollectiveControlFlowError as error:
            if "move it out" in str(error):
                continue
        complaints[step.__name__] = "no error"
    return complaints


@case(
    "variable_creation_check",
    raises=(
        errors.CreateVariableInStepError,
        r"created a variable \('mine'\).*context",
    ),
)
def a_variable_made_in_a_step(repl):
    """The message names the variable and says where to create it."""

    def step():
        return tf.Variable(1.0, name="mine")

    repl.run(step)


@case(
    "unsynchronized_update_check",
    raises=(
        errors.UnsynchronisedUpdateError,
        r"trainable variable 'weight:0' would be updated.*wrap_optimizer",
    ),
    min_replicas=2,
)
def training_apart_by_accident(repl):
    """An optimizer that is not wrapped would make replicas diverge."""
    with repl.context():
        weight = tf.Variable([1.0], name="weight")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    repl.run(step, share(repl, [np.float32([r]) for r in range(repl.num_replicas)]))


@case(
    "unsynchronized_update_check",
    raises=(
        errors.UnsynchronisedUpdateError,
        r"variable 'running:0' .* at \S+misuse\.py:\d+: running.*average the v",
    ),
    min_replicas=2,
)
def training_by_a_state_of_each_replica(repl):
    """Gradients would be averaged that belong to different losses."""
    with repl.context():
        weight = tf.Variable([1.0], name="weight")
        running = tf.Variable([0.0], trainable=False, name="running")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        running.assign(0.9 * running + 0.1 * x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * (x - running))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    repl.run(step, share(repl, [np.float32([r]) for r in range(repl.num_replicas)]))


@case("collectives", raises=(ValueError, r"'mean' of int32 would be rounded"))
def the_mean_of_integers(repl):
    """Silent rounding would give a wrong number."""

    def step():
        return replicator.all_mean(tf.constant(1))

    repl.run(step)


@case(
    "collectives",
    raises=(ValueError, r"source_replica_id \d+ is out of range: there are \d+ repl"),
)
def a_broadcast_from_nowhere(repl):
    """The message gives the range."""

    def step():
        return replicator.broadcast(tf.constant(1.0), repl.num_replicas)

    repl.run(step)


@case("collectives", raises=(TypeError, r"source_replica_id 0.5 must be a Python int"))
def a_source_that_is_no_int(repl):
    """The source is fixed when the step is traced."""

    def step():
        return replicator.broadcast(tf.constant(1.0), 0.5)

    repl.run(step)


@case(
    "collectives",
    raises=(
        errors.CollectiveContextError,
        r"all_reduce\(\) was called in cross-replica context.*inside the step",
    ),
)
def a_collective_outside_a_step(repl):
    """Also after a step has run, because its context has ended."""

    def step():
        return replicator.all_sum(tf.constant(1.0))

    repl.run(step)
    replicator.all_sum(tf.constant(1.0))


@case(
    "synchronous_training",
    raises=(
        errors.CollectiveContextError,
        r"apply_gradients\(\) was called in cross-replica context",
    ),
)
def an_update_outside_a_step(repl):
    """Outside a step there are no replicas to average over."""
    repl.wrap_optimizer(keras.optimizers.SGD(0.1)).apply_gradients([])


@case(
    "synchronous_training",
    raises=(ValueError, r"got no gradient: all of them are None"),
)
def an_update_without_gradients(repl):
    """A loss that does not depend on the variables trains nothing."""
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step():
        optimizer.apply_gradients([(None, weight)])
        return tf.constant(0)

    repl.run(step)


@case(
    "synchronous_training",
    raises=(TypeError, r"needs a Keras 3 optimizer, but 'str' has no 'apply'"),
)
def an_optimizer_of_another_kind(repl):
    """The message says which attribute is missing and gives an example."""
    repl.wrap_optimizer("sgd")


@case(
    "collectives",
    raises=(TypeError, r"step returned a 'object'; a step returns a nest of tensors"),
)
def results_that_are_no_tensors(repl):
    """The message names the step and the type."""

    def step():
        return {"model": object()}

    repl.run(step)


@case("fixed_inputs", raises=(TypeError, r"nest of PerReplica, or None; got 'list'"))
def inputs_of_another_kind(repl):
    """A bare tensor does not say for which replica it is."""
    repl.run(tf.identity, [tf.constant(1)])


@case(
    "fixed_inputs",
    raises=(ValueError, r"have \d+ values per leaf, but there are \d+"),
)
def values_for_another_number_of_replicas(repl):
    """The message has both numbers."""
    values = replicator.PerReplica([1] * (repl.num_local_replicas + 1))
    repl.run(tf.identity, values)


@case(
    "fixed_inputs",
    "steps_per_execution",
    raises=(ValueError, r"num_steps 2 needs a new batch.*InputIterator"),
)
def steps_per_execution_over_one_batch(repl):
    """Fixed values would repeat the same batch."""
    values = share(repl, [tf.constant(1)] * repl.num_replicas)
    repl.run(tf.identity, values, num_steps=2)


@case(
    "steps_per_execution",
    raises=(ValueError, r"num_steps 0 must be an integer of at least"),
)
def no_step_at_all(repl):
    """Raises an error before anything is traced."""
    repl.run(lambda: tf.constant(1), num_steps=0)


@case(
    "input_per_worker",
    raises=(TypeError, r"input_fn returned 'list', but it must return a tf.data."),
)
def an_input_function_without_a_dataset(repl):
    """The message has the type that was returned."""
    repl.make_input_iterator(lambda _: [1, 2])


@case("input_per_worker", raises=(TypeError, r"mode 'SINGLE' is not one of .*PER_REPL"))
def a_mode_that_is_a_string(repl):
    """The message lists the modes."""
    repl.make_input_iterator(lambda _: tf.data.Dataset.range(1), "SINGLE")


@case(
    "input_per_worker",
    "synchronous_training",
    raises=(errors.SplitBatchError, r"is not divisible by num_replicas \d+"),
    min_replicas=2,
)
def a_global_batch_that_does_not_divide(repl):
    """Both numbers are named; nothing is rounded."""

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(2 * repl.num_replicas + 1)
        return tf.data.Dataset.range(8).batch(size)

    repl.make_input_iterator(input_fn)
