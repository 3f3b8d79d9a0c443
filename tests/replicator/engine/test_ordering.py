"""Effects keep their place among the others; each replica has its own Python calls."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica

NUM_RUNS = 20  # of a race: before, most runs were wrong


def test_a_loop_that_writes_ends_before_a_later_write(in_graph):
    """The later write uses a result of the loop, which is there before its effects."""
    with in_graph.context():
        weight = tf.Variable([5.0, 6.0], trainable=False)

    def step():
        replica_id = replicator.get_replica_context().replica_id
        ones = tf.ones([2])
        old = weight.read_value()

        def body(count, _):
            weight.assign(old)
            return count + 1, ones

        _, got = tf.while_loop(
            lambda count, _: count < replica_id, body, (tf.constant(0), ones)
        )
        weight.assign_sub(got)
        weight.assign_sub(old)
        return weight.read_value()

    for _ in range(NUM_RUNS):
        weight.assign([5.0, 6.0])
        found = in_graph.run(step)
        # Without an iteration, 5 - 1 - 5; the loop puts 5 back, which is no change
        # unless it comes after the first of the two subtractions.
        assert [[-1.0, -1.0]] * 2 == [value.numpy().tolist() for value in found]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("uses_result", [False, True])
def test_a_branch_that_writes_starts_after_an_earlier_write(
    in_graph, is_nested, uses_result
):
    with in_graph.context():
        weight = tf.Variable(0, trainable=False)

    def step(is_taken):
        weight.assign(4)

        def inner(x):
            def no():
                weight.assign_add(4)
                return x * 2

            y = tf.cond(is_taken, lambda: x, no)
            return x + y if uses_result else x

        call = tf.function(inner, autograph=False) if is_nested else inner
        return call(tf.constant(1.0))

    for _ in range(NUM_RUNS):
        weight.assign(0)
        in_graph.run(step, PerReplica([tf.constant(False)] * 2))
        assert 8 == int(weight.numpy())


def test_a_branch_whose_argument_nobody_uses_keeps_its_place(in_graph):
    """The argument was all that said that the branch follows another one."""
    with in_graph.context():
        weight = tf.Variable(
            [0.5, 0.25],
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
        )

    def step(batch):
        is_taken, c = batch
        read = tf.function(weight.read_value, autograph=False)
        before = tf.tanh(read())

        def add():
            weight.assign_add(before)
            return before

        def first():
            tf.cond(is_taken, add, lambda: c)
            return tf.reduce_sum(weight.read_value())

        total = tf.cond(is_taken, first, lambda: tf.zeros([]))

        def second():
            weight.assign_sub(c)
            tf.square(total)  # nobody uses it
            return 2.0 * c

        tf.cond(is_taken, second, lambda: c)
        return weight.read_value()

    for _ in range(NUM_RUNS):
        weight.assign([0.5, 0.25])
        values = PerReplica([tf.constant([1.0, 2.0])] * 2)
        found = in_graph.run(step, (PerReplica([tf.constant(True)] * 2), values))
        for value in found:
            np.testing.assert_allclose(value, [-0.0378829, -1.5050814], rtol=1e-5)


def test_a_value_that_a_call_is_given_is_read_before_the_call_writes(in_graph):
    with in_graph.context():
        weight = tf.Variable(1, trainable=False)

    def step():
        weight.assign(1)
        before = weight.read_value()

        @tf.function(autograph=False)
        def call():
            weight.assign_sub(weight.read_value())
            rounds = tf.while_loop(
                lambda count: count < before,
                lambda count: (weight.assign_sub(before), count + 1)[1:],
                (tf.constant(0),),
            )
            return tf.identity(rounds[0])

        return call()

    for _ in range(NUM_RUNS):
        assert [1, 1] == [int(rounds) for rounds in in_graph.run(step)]
        assert -1 == int(weight.numpy())


def _branch(x, read):
    return tf.cond(x > 0, lambda: x, lambda: read)


def _case(x, read):
    return tf.switch_case(tf.cast(x > 0, tf.int32), [lambda: read, lambda: x])


def _loop(x, read):
    shown = tf.while_loop(
        lambda count, *_: count > x, lambda *args: (args[0], args[2], read), (0.0, x, x)
    )
    return shown[1]


def _first(x, read):
    return x


@pytest.mark.parametrize(
    "function",
    [
        _branch,
        _case,
        _loop,
        tf.function(_first, autograph=False),
        tf.function(_branch, autograph=False),
        tf.function(
            _first, autograph=False, experimental_attributes={"_noinline": True}
        ),
    ],
    ids=["branch", "case", "loop", "call", "branch in a call", "call that stays"],
)
def test_a_write_of_what_passes_by_a_read_comes_after_that_read(in_graph, function):
    """Its value is there before the read that the write has to wait for."""
    with in_graph.context():
        weight = tf.Variable(1.0, trainable=False)

    def step(x):
        before = weight.read_value()
        late = tf.ones([300, 300])
        for _ in range(8):
            late = late @ tf.ones([300, 300]) / 300.0
        weight.assign_add(late[0, 0])
        weight.assign(function(x, weight.read_value()))
        return before

    for _ in range(3):
        weight.assign(1.0)
        before = in_graph.run(step, PerReplica([tf.constant(5.0)] * 2))
        assert [1.0, 1.0] == list(map(float, before))
        assert 5.0 == float(weight)


INPUTS = PerReplica([tf.constant(1.0), tf.constant(3.0)])


def _square(x):
    return 2.0 * x * x


def _call(x):
    return tf.py_function(_square, [x], tf.float32)


@pytest.mark.parametrize("function", [_call, tf.function(_call)], ids=["", "nested"])
def test_the_gradient_of_a_python_function_is_that_of_the_own_call(in_graph, function):
    """A collective between call and gradient makes all calls come first."""
    weight = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            total = replicator.all_sum(function(weight * x))
        return total, tape.gradient(total, weight)

    in_graph.run(step, INPUTS)  # the second run uses the tokens again
    totals, gradients = in_graph.run(step, INPUTS)

    assert [80.0, 80.0] == list(map(float, totals))  # 2 (2 x)^2, of 1 and 3
    # 2 replicas, 4 w x^2
    assert [2 * 8.0 * 1.0, 2 * 8.0 * 9.0] == list(map(float, gradients))


@pytest.mark.parametrize(
    ("call", "join", "expected"),
    [
        (tf.numpy_function, tf.identity, [1.0, 3.0]),
        # An effect that is seen outside is not merged, though its value is the same.
        (tf.py_function, replicator.all_sum, [4.0, 4.0]),
    ],
)
def test_a_python_function_runs_once_per_replica(in_graph, call, join, expected):
    seen = []

    def note(x):
        seen.append(float(x))
        return x

    def step(x):
        return call(note, [join(x)], tf.float32)

    assert expected == [float(x) for x in in_graph.run(step, INPUTS)]
    assert expected == sorted(seen)
