"""What inlined calls of tasks have in common is one node, and nothing else is."""

import pytest
import tensorflow as tf

from replicator._tf import compat
from replicator._tf.dispatch import Dispatch, call_function
from replicator.engine.graph.inlining import inline
from replicator.step.stage_names import FUNCTION_PREFIX


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
