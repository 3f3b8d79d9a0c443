"""Inlined calls: the same values and order, and one node for all they share."""

import pytest
import tensorflow as tf

import replicator
from replicator._tf import compat
from replicator._tf.dispatch import Dispatch, call_function, recorded
from replicator.engine.graph.inlining import inline
from replicator.step.logical import FUNCTION_PREFIX


def as_task(function):
    function.__name__ = f"{FUNCTION_PREFIX}_0"
    traced = tf.function(function, autograph=False)
    return traced.get_concrete_function(tf.TensorSpec([]))


def call(task, x):
    arguments = [x, *task.captured_inputs]
    (result,) = call_function(task.name.decode(), arguments, [tf.float32])
    return result


def run(caller, task, argument=1.0):
    """What a function returns that calls a task, and by name the nodes that ran.

    The function is called by another one, as the step is.
    """
    step = tf.function(caller, autograph=False)
    step = step.get_concrete_function(tf.TensorSpec([]))
    names = step.name.decode(), task.name.decode()
    kept = []

    def program(source):
        arguments = [*source, *step.captured_inputs]
        return call_function(names[0], arguments, [tf.float32] * len(step.outputs))

    def rewrite(function):
        callees = map(compat.function_def, names)
        kept.append(inline(function, f"{function.signature.name}_inlined", callees))
        return kept[0]

    outputs = Dispatch(program, rewrite=rewrite)([tf.constant(argument)])
    return [float(x) for x in outputs], {n.name: n for n in kept[0].node_def}


def num(nodes, op):
    return sum(node.op == op for node in nodes.values())


@pytest.fixture
def variable():
    return tf.Variable([1.0, 2.0])


def test_what_does_not_depend_on_the_micro_batch_is_shared(variable):
    """Reads, constants and what follows from them; the write waits for all tasks."""
    task = as_task(
        lambda x: tf.reduce_sum(tf.reverse(variable * 3.0, [0]) * [1.0, 10.0]) * x
    )

    def step(x):
        found = [call(task, x + float(m)) for m in range(3)]
        with tf.control_dependencies(found):
            variable.assign([0.0, 0.0])
        return found

    values, nodes = run(step, task)

    assert [36.0, 72.0, 108.0] == values
    assert (1, 1, 1) == (
        num(nodes, "ReadVariableOp"),
        num(nodes, "ReverseV2"),
        num(nodes, "Sum"),
    )
    assert [0.0, 0.0] == variable.numpy().tolist()


def test_a_write_between_tasks_is_read_by_the_next(variable):
    """Nothing is shared that the step changes meanwhile."""
    task = as_task(lambda x: variable[1] * x)

    def step(x):
        found = []
        for value in (5.0, 7.0):
            found.append(call(task, x))
            variable.assign([0.0, value])
        return found

    values, nodes = run(step, task)

    assert ([2.0, 5.0], 2) == (values, num(nodes, "ReadVariableOp"))
    assert 7.0 == float(variable[1])


def test_a_write_before_the_first_task_is_read_by_all(variable):
    """Nor is what the step has written; what waits for the task runs after it."""
    task = as_task(lambda x: variable[1] * x)

    def step(x):
        variable.assign([0.0, 5.0])
        return [call(task, x), call(task, 2.0 * x)]

    values, nodes = run(step, task)

    assert ([5.0, 10.0], 2) == (values, num(nodes, "ReadVariableOp"))


def test_what_a_task_writes_is_read_again(variable):
    """And what only it reads is not."""
    other = tf.Variable(10.0)

    def stage(x):
        variable.assign_add([x, x])
        return variable[0] + other

    task = as_task(stage)
    values, nodes = run(lambda x: [call(task, x), call(task, x)], task)

    assert ([12.0, 13.0], 3) == (values, num(nodes, "ReadVariableOp"))


def test_draws_are_not_shared_and_wait_for_the_turn_of_their_task():
    """Though they take a constant alone, which is."""
    task = as_task(lambda x: x + tf.random.uniform([1], seed=3)[0])

    def step(x):
        first = call(task, x)
        with tf.control_dependencies([first]):
            return [first, call(task, x)]

    _, nodes = run(step, task)
    one, other = (node for node in nodes.values() if node.op == "RandomUniform")
    (begin,) = (nodes[text[1:]] for text in other.input if text.startswith("^"))

    assert one.input[0] == other.input[0]
    assert begin.name.endswith("input_control_node")
    assert begin.input


def test_a_task_of_shared_reads_alone_ends_after_it_begins(variable):
    """The reads themselves do not wait for what the task waits for."""

    def stage(x):
        variable.read_value()
        return tf.identity(x)

    task = as_task(stage)

    def step(x):
        with tf.control_dependencies([x + 4.0]):
            passed = call(task, x)
        with tf.control_dependencies([passed]):
            return [tf.negative(x)]

    values, nodes = run(step, task)
    ends = (name for name in nodes if name.endswith("output_control_node"))
    end = nodes[max(ends, key=len)]
    waits = [nodes[text.removeprefix("^")] for text in end.input]

    assert [-1.0] == values
    assert ["NoOp", "ReadVariableOp"] == sorted(node.op for node in waits)
    assert any(node.name.endswith("input_control_node") for node in waits)


def function_def(function, *args):
    concrete = tf.function(function, autograph=False).get_concrete_function(*args)
    return concrete, compat.function_def(concrete.name.decode())


def run_inlined(caller, callees, *args):
    """What a function that calls others returns, and the functions that it calls."""
    kept = []

    def rewrite(function):
        name = f"{function.signature.name}_inlined"
        kept.append(inline(function, name, callees))
        return kept[0]

    outputs = Dispatch(caller, rewrite=rewrite)(list(args))
    return [float(x) for x in outputs], [
        node.attr["f"].func.name
        for node in kept[0].node_def
        if node.attr["f"].func.name
    ]


def test_calls_within_calls_are_inlined_and_others_stay():
    """Arguments, results and the result of one call as the argument of another."""
    spec = tf.TensorSpec([])
    doubled, of_double = function_def(lambda x: (2 * x, x), spec)
    name = of_double.signature.name

    def outer(x):
        first, same = call_function(name, [x], [tf.float32] * 2)
        return call_function(name, [first + same], [tf.float32] * 2)

    both, of_both = function_def(outer, spec)
    other, of_other = function_def(tf.negative, spec)

    def caller(source):
        found = call_function(of_both.signature.name, source, [tf.float32] * 2)
        return [
            *found,
            *call_function(of_other.signature.name, [found[0]], [tf.float32]),
        ]

    values, calls = run_inlined(caller, [of_double, of_both], tf.constant(5.0))

    assert [30.0, 15.0, -30.0] == values
    assert [of_other.signature.name] == calls
    del doubled, both, other


def test_effects_keep_their_order():
    """A call waits for what is before it, and what is after it for its effects."""
    variable = tf.Variable(1.0)

    def add_to(x):
        before = variable.read_value()
        variable.assign_add(x)
        return before

    adding, of_adding = function_def(add_to, tf.TensorSpec([]))

    def caller(source):
        variable.assign(10.0)
        with tf.control_dependencies([tf.constant(0.0)]):
            (first,) = call_function(
                of_adding.signature.name, [*source, variable.handle], [tf.float32]
            )
        (second,) = call_function(
            of_adding.signature.name, [*source, variable.handle], [tf.float32]
        )
        return [first, second, variable.read_value()]

    values, calls = run_inlined(caller, [of_adding], tf.constant(2.0))

    assert ([10.0, 12.0, 14.0], []) == (values, calls)
    assert 14.0 == float(variable)
    del adding


def test_an_argument_can_be_waited_for():
    """Functions may name one in a control edge; here it is the result of a node."""
    _, callee = function_def(lambda x: tf.constant(3.0) + 0.0 * x, tf.TensorSpec([]))
    (argument,) = (arg.name for arg in callee.signature.input_arg)
    constant = next(node for node in callee.node_def if node.op == "Const")
    constant.input.append(f"^{argument}")
    callee.signature.name += "_that_waits"
    compat.add_function(callee)

    def caller(source):
        return call_function(callee.signature.name, [source[0] * 2], [tf.float32])

    assert ([3.0], []) == run_inlined(caller, [callee], tf.constant(5.0))
    compat.remove_functions([callee.signature.name])


def called_by_what_runs(run):
    """The functions that the functions which a call starts call themselves."""
    with recorded() as started:
        run()
    return [
        node.attr["f"].func.name
        for function in started
        for node in compat.function_def(function.name).node_def
        if node.attr["f"].func.name
    ]


def test_a_step_is_no_call_in_what_runs():
    """TensorFlow would make a graph of it, twice, to look for parts for TPUs."""
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        variable = tf.Variable(0.0)

    def step(x):
        variable.assign_add(replicator.all_sum(x))
        return variable + x

    xs = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    calls = called_by_what_runs(lambda: repl.run(step, xs))

    assert [] == calls
    assert [7.0, 8.0] == [float(x) for x in repl.run(step, xs)]


def test_tasks_of_a_pipeline_are_no_calls_in_what_runs():
    """Each would get an identity per argument and result."""
    repl = replicator.create("in_graph", num_replicas=1, logical_devices_per_replica=2)
    with repl.context():
        weights = []
        for k in range(2):
            with replicator.logical_device(k):
                weights.append(tf.Variable(float(k + 2)))
    pipeline = replicator.Pipeline(
        [lambda x, w=weight: w * x for weight in weights], num_microbatches=2
    )

    def step(x):
        loss, pairs = pipeline.loss_and_gradients(
            (x, x), lambda outputs, targets: tf.reduce_mean(outputs + 0 * targets)
        )
        return loss, [gradient for gradient, _ in pairs]

    x = replicator.PerReplica([tf.constant([1.0, 3.0])])
    assert [] == called_by_what_runs(lambda: repl.run(step, x))
    (loss,), ((first,), (second,)) = repl.run(step, x)
    assert [12.0, 6.0, 4.0] == [float(loss), float(first), float(second)]


def test_the_function_that_runs_is_removed_with_its_program(monkeypatch):
    """TensorFlow would keep it as long as the process."""
    removed = []
    monkeypatch.setattr(compat, "remove_functions", removed.extend)
    _, callee = function_def(lambda x: x + 1.0, tf.TensorSpec([]))
    made = Dispatch(
        lambda source: call_function(callee.signature.name, source, [tf.float32]),
        rewrite=lambda function: inline(function, "what_runs", [callee]),
    )
    assert 2.0 == float(made([tf.constant(1.0)])[0])
    assert "what_runs" == made.name
    del made
    assert ["what_runs"] == removed
