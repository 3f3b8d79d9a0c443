"""What varies between replicas, proven on small traced steps."""

import pytest
import tensorflow as tf

import replicator
from replicator import errors
from replicator.core.topology import make_topology
from replicator.engine.graph import body, dataflow
from replicator.engine.graph.optimize import optimize
from replicator.engine.graph.trace import trace

TWO_CPUS = make_topology([["/job:localhost/replica:0/task:0/device:CPU:0"]] * 2)
SCALAR = tf.TensorSpec([], tf.float32)


def _analyze(step, specs=(SCALAR,), local=()):
    """Analyzes a step; returns names of local variables and the whole analysis."""
    traced = trace(step, list(specs), 2)
    found = dataflow.find_invariance(
        body.from_graph_def(optimize(traced, TWO_CPUS)),
        invariant_inputs={m for c in traced.collectives for m in c.markers},
        handles=set(traced.variables),
        local={n for n, v in traced.variables.items() if any(v is u for u in local)},
    )
    names = {traced.variables[handle].name for handle in found.local}
    return names, found, traced


def _is_output_invariant(step, specs=(SCALAR,)):
    _, found, traced = _analyze(step, specs)
    (name,) = (name.partition(":")[0] for name in traced.output_names)
    markers = {m for c in traced.collectives for m in c.markers}
    return name in found.nodes | markers


def _variable(name, *, trainable=False, value=0.0):
    return tf.Variable(value, name=name, trainable=trainable)


def _of_replica_id(x):
    replica_id = replicator.get_replica_context().replica_id
    return tf.cast(replica_id, tf.float32) + replicator.all_sum(x)


def _of_invariant_branch(x):
    total = replicator.all_sum(x)
    return tf.cond(total > 0, lambda: total, lambda: 2 * total)


def _of_varying_branch(x):
    total = replicator.all_sum(x)
    return tf.cond(x > 0, lambda: total, lambda: 2 * total)


# A step, and whether its result is the same on every replica.
VALUES = {
    "batch": (lambda x: x * 2.0 + 1.0, False),
    "reduction": (lambda x: replicator.all_sum(x) * 2.0 + 1.0, True),
    "gather": (lambda x: tf.reduce_sum(replicator.all_gather(x) * 2.0), True),
    "broadcast": (lambda x: replicator.broadcast(x, 1) * 2.0, True),
    "both": (lambda x: replicator.all_sum(x) * x, False),
    "random": (lambda x: tf.random.uniform([]) + replicator.all_sum(x), False),
    "replica id": (_of_replica_id, False),
    "stateless random": (
        lambda x: tf.random.stateless_uniform([], [1, 2]) * replicator.all_sum(x),
        True,
    ),
    "invariant branch": (_of_invariant_branch, True),
    "varying branch": (_of_varying_branch, False),
}


@pytest.mark.parametrize("of", VALUES)
def test_values_vary_where_their_inputs_do(of):
    step, expected = VALUES[of]

    assert expected is _is_output_invariant(step)


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
    "plain": lambda variable, value: variable.assign(value),
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


@pytest.mark.parametrize("way", WRITES)
def test_a_varying_write_makes_a_variable_local_whatever_the_way(way):
    """Through functions, branches, loops and aliases of the handle; others stay."""
    written, other = _variable("written", value=[0.0]), _variable("other")

    def step(x):
        value = tf.reshape(x, [1]) if way == "plain" else x
        WRITES[way](written, value)
        other.assign(replicator.all_sum(x))

    names, _, _ = _analyze(step)

    assert {"written:0"} == names


@pytest.mark.parametrize("way", [way for way in WRITES if not way.startswith("iden")])
def test_an_invariant_write_leaves_a_variable_mirrored_whatever_the_way(way):
    """The same ways with a reduced value make nothing local."""
    written = _variable("written", value=[0.0])

    def step(x):
        total = replicator.all_sum(x)
        WRITES[way](written, tf.reshape(total, [1]) if way == "plain" else total)

    names, _, _ = _analyze(step)

    assert set() == names


def test_locality_spreads_from_variable_to_variable():
    """A mirrored write that reads a local variable is found in a second pass."""
    first, second, third = (_variable(name) for name in ("a", "b", "c"))

    def step(x):
        third.assign(second.read_value())
        second.assign(first.read_value())
        first.assign(x)

    names, _, _ = _analyze(step)

    assert {"a:0", "b:0", "c:0"} == names


def test_variables_known_to_be_local_have_no_culprit():
    """Only what the analysis found is explained by a node."""
    known, found_out = _variable("known"), _variable("found_out")

    def step(x):
        found_out.assign(known.read_value() + replicator.all_sum(x))

    names, found, traced = _analyze(step, local=[known])

    assert {"known:0", "found_out:0"} == names
    assert ["found_out:0"] == [traced.variables[h].name for h in found.local_because]


def test_effects_that_are_seen_outside_are_never_merged(in_graph, per_replica):
    """A Python side effect of an invariant value happens once on every replica."""
    seen = []

    def note(value):
        seen.append(float(value))
        return value

    def step(x):
        return tf.py_function(note, [replicator.all_sum(x)], tf.float32)

    out = in_graph.run(step, per_replica([1.0, 2.0]))

    assert [3.0, 3.0] == [float(v) for v in out]
    assert [3.0, 3.0] == seen


def test_a_stateful_op_that_calls_functions_is_not_taken_for_them():
    """Inputs of a data set's op are not those of the function it maps."""

    def step(x):
        def scale(i):
            return tf.cast(i, tf.float32) * x

        return tf.data.Dataset.range(3).map(scale).reduce(0.0, lambda a, b: a + b)

    traced = trace(step, [SCALAR], 2)
    graph = body.from_graph_def(optimize(traced, TWO_CPUS))
    table = dataflow.EffectTable(graph.library)
    stateful = [
        node
        for node in graph.nodes
        if (definition := dataflow._tf_compat.op_def(node.op))
        and definition.is_stateful
    ]

    assert stateful
    assert all(not table.of(node).is_pure for node in stateful)
    assert not _is_output_invariant(step)


def test_two_trainables_that_drift_are_counted():
    first, second = (_variable(n, trainable=True) for n in ("a", "b"))

    def step(x):
        first.assign(x)
        second.assign(x)

    _, found, traced = _analyze(step)

    with pytest.raises(
        errors.UnsynchronisedUpdateError,
        match=r"variable '[ab]:0' and 1 more would be updated .* between replicas at "
        r"\S+test_invariance.py:\d+: \w+\.assign\(x\), so the copies",
    ):
        dataflow.check_trainable(found, traced.variables, traced.lines)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_reads_and_writes_keep_their_order(in_graph, num_steps):
    """Old value, update, new value: on every replica, in every step of a dispatch."""
    with in_graph.context():
        weight = tf.Variable(1.0)
        local = tf.Variable(1.0, trainable=False)

    def step():
        replica_id = replicator.get_replica_context().replica_id
        before, local_before = weight.read_value(), local.read_value()
        weight.assign(2 * weight)
        local.assign(local * (2.0 + tf.cast(replica_id, tf.float32)))
        after = weight.read_value()
        weight.assign_add(replicator.all_sum(after) - 2 * after)
        return before, after, weight.read_value(), local_before, local.read_value()

    out = in_graph.run(step, num_steps=num_steps)

    before = 2.0 ** (num_steps - 1)
    for replica_id in range(2):
        growth = 2.0 + replica_id
        assert [
            before,
            2 * before,
            2 * before,
            growth ** (num_steps - 1),
            growth**num_steps,
        ] == [float(value[replica_id]) for value in out]
