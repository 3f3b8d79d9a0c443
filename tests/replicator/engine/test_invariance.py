"""What varies between replicas, proven: who has copies of a variable of its own."""

import pytest
import tensorflow as tf

import replicator

INPUTS = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])


def _variable(name, *, trainable=False, value=0.0):
    return tf.Variable(value, name=name, trainable=trainable)


def _local(repl):
    """Names of the variables of which each replica has a copy of its own."""
    return {state.variable.name.removesuffix(":0") for state in repl.local_state()}


def _in_function(variable, value):
    @tf.function
    def write(v):
        @tf.function
        def inner(u):
            variable.assign_add(tf.reshape(u, [1]))

        inner(v * 2)

    write(value)


def _in_cond(variable, value):
    tf.cond(
        value > 0,
        lambda: variable.assign(tf.reshape(value, [1])),
        lambda: variable.assign_add([1.0]),
    )


def _in_while(variable, value):
    def write(index):
        variable.assign_add(tf.reshape(value, [1]))
        return (index + 1,)

    tf.while_loop(lambda index: index < 3, write, (0,))


def _in_case(variable, value):
    def write():
        return variable.assign_add([1.0])

    tf.switch_case(tf.cast(value, tf.int32), [write, write, variable.read_value])


def _through_identity(variable, value):
    variable.read_value()
    tf.raw_ops.AssignVariableOp(
        resource=tf.identity(variable.handle), value=tf.reshape(value, [1])
    )


def _through_identity_n(variable, value):
    variable.read_value()
    handle = tf.identity_n([tf.zeros([]), variable.handle])[1]
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.reshape(value, [1]))


WRITES = {
    "plain": lambda variable, value: variable.assign(tf.reshape(value, [1])),
    "scatter": lambda variable, value: variable.scatter_nd_add(
        [[0]], tf.reshape(value, [1])
    ),
    "slice": lambda variable, value: variable[0].assign(value),
    "function": _in_function,
    "cond": _in_cond,
    "while": _in_while,
    "case": _in_case,
    "identity": _through_identity,
    "identity_n": _through_identity_n,
}


def test_a_varying_write_makes_a_variable_local_whatever_the_way(in_graph):
    """Through functions, branches, loops and aliases of the handle; others stay."""
    # The same ways with a reduced value make nothing local, but for aliases.
    written = {way: _variable(way, value=[0.0]) for way in WRITES}
    same = {way: _variable(f"same_{way}", value=[0.0]) for way in WRITES}

    def step(x):
        total = replicator.all_sum(x)
        for way, write in WRITES.items():
            write(written[way], x)
            if "identity" not in way:
                write(same[way], total)

    in_graph.run(step, INPUTS)

    assert set(WRITES) == _local(in_graph)
    in_graph.assert_in_sync()


def test_two_trainables_that_drift_are_counted(in_graph):
    first, second = (_variable(n, trainable=True) for n in ("a", "b"))

    def step(x):
        first.assign(x)
        second.assign(x)

    with pytest.raises(
        replicator.UnsynchronisedUpdateError,
        match=r"variable '[ab]:0' and 1 more would be updated .* between replicas at "
        r"\S+test_invariance.py:\d+: \w+\.assign\(x\), so the copies",
    ):
        in_graph.run(step, INPUTS)
