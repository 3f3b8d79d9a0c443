"""The nodes of a called function in place of the call: the same values and order."""

import tensorflow as tf

import replicator
from replicator._tf import compat
from replicator._tf.dispatch import Dispatch, call_function, recorded
from replicator.engine.graph.inlining import inline


def function_def(function, *args):
    """A registered function, and the ``FunctionDef`` of it."""
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
