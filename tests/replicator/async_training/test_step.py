"""Step: what workers share, and what they keep apart because a step overwrites it."""

import keras
import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training.step import overwritten, trace_step
from replicator.engine.graph import body
from replicator.errors import UnsynchronisedUpdateError
from replicator.variables.kinds import Kind


def graph(op, *inputs):
    """A body with one node that takes two handles, ``v`` and ``w``, or others."""
    nodes = [_tf_compat.NodeDef(name=n, op="Placeholder") for n in ("v", "w", "x")]
    nodes.append(_tf_compat.NodeDef(name="n", op=op, input=list(inputs)))
    return body.from_graph_def(_tf_compat.GraphDef(node=nodes))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("AssignVariableOp", ["v"]),
        ("ResourceScatterUpdate", ["v"]),
        ("ResourceScatterNdUpdate", ["v"]),
        ("ResourceStridedSliceAssign", ["v"]),
        ("AssignAddVariableOp", []),
        ("AssignSubVariableOp", []),
        ("ResourceScatterAdd", []),
        ("ResourceScatterSub", []),
        ("ResourceScatterMin", []),
        ("ResourceScatterNdAdd", []),
        ("ResourceApplyGradientDescent", []),
        ("ResourceSparseApplyAdagrad", []),
        ("ReadVariableOp", []),
        ("ResourceGather", []),
    ],
)
def test_what_adds_does_not_overwrite(op, expected):
    """It runs under the variable's lock, on the server."""
    assert expected == overwritten(graph(op, "v", "x"), {"v", "w"})


def test_only_variables_are_overwritten():
    """Not what is written into them; control edges write nothing."""
    assert [] == overwritten(graph("AssignVariableOp", "x", "v"), {"w"})
    assert [] == overwritten(graph("AssignAddVariableOp", "v", "x", "^w"), {"v", "w"})
    assert [] == overwritten(body.from_graph_def(_tf_compat.GraphDef()), {"v"})


def test_a_function_that_overwrites_is_found():
    """The second argument of the call is the variable."""
    function = _tf_compat.FunctionDef()
    function.signature.name = "inner"
    for name, dtype in (("x", tf.float32), ("h", tf.resource)):
        function.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
    function.node_def.add(name="a", op="AssignVariableOp", input=["h", "x"])
    call = _tf_compat.NodeDef(name="n", op="StatefulPartitionedCall", input=["v", "w"])
    call.attr["f"].func.name = "inner"
    nodes = [_tf_compat.NodeDef(name=n, op="Placeholder") for n in ("v", "w")]
    graph_def = _tf_compat.GraphDef(node=[*nodes, call])
    graph_def.library.function.append(function)

    assert ["w"] == overwritten(body.from_graph_def(graph_def), {"v", "w"})


def trace(job, step_fn, *specs):
    return trace_step(
        step_fn,
        specs,
        name=job.name.replace(" ", "_"),
        topology=job.topologies[0],
        table=job.table,
        commit_states=job.commit_states,
    )


ANY_INPUT = (tf.TensorSpec([1]),)


@pytest.mark.parametrize(
    ("step", "specs", "num_workers", "share", "expected"),
    [
        (lambda v: v.assign(v + 1.0), (), 2, 1, Kind.LOCAL),
        (lambda v: [v.assign([1.0], read_value=False)][1:], (), 2, 1, Kind.LOCAL),
        (lambda v: v.assign_add([1.0]), (), 2, 1, Kind.MIRRORED),
        (lambda v: v.read_value(), (), 2, 1, Kind.MIRRORED),
        (lambda v: v.assign(v * 2.0), (), 1, 1, Kind.MIRRORED),
        (lambda v: v.assign(v * 2.0), (), 1, 2, Kind.MIRRORED),
        (lambda v, x: v.assign(x), ANY_INPUT, 1, 2, Kind.LOCAL),
    ],
    ids=[
        "overwritten by two workers",
        "overwritten and not read",
        "added to",
        "read",
        "overwritten by one",
        "overwritten the same way by replicas in sync",
        "overwritten by each with its own batch",
    ],
)
def test_what_a_step_overwrites_gets_a_copy_per_replica(
    make_job, step, specs, num_workers, share, expected
):
    """Unless there is one worker, whose replicas are in sync."""
    job = make_job(num_workers=num_workers, share=share)
    (variable,) = job.variables([0.0], trainable=False)

    trace(job, lambda *batch: step(variable, *batch), *specs)

    assert expected is job.table.kind(variable)


def test_a_weight_that_is_overwritten_is_refused(job):
    """By two workers; its step would lose updates, as one that adds does not."""
    (weight,) = job.variables([0.0])

    trace(job, lambda: weight.assign_sub([1.0]))
    assert Kind.MIRRORED is job.table.kind(weight)

    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"overwritten \(assign\) by 2 asynchronous workers",
    ):
        trace(job, lambda: weight.assign(weight * 2.0))


@pytest.mark.parametrize("share", [1, 2])
def test_replicas_in_sync_do_not_train_by_states_that_differ(make_job, share):
    """The one replica of a worker trains by its own state, as one device does."""
    job = make_job(share=share)
    weight, rate = job.variables([1.0], [2.0])
    (queue,) = job.variables([0.5], trainable=False, name="queue")
    optimizer = job.optimizer(lambda: keras.optimizers.SGD(0.1), [weight])

    def step(x):
        temperature = rate.assign_sub([0.1])
        with tf.GradientTape() as tape:
            loss = weight * queue * x / temperature
        queue.assign(x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    if share == 1:
        trace(job, step, *ANY_INPUT)
        return
    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"^variable 'queue:0' is assigned a value .* replicas at .*queue\.as",
    ):
        trace(job, step, *ANY_INPUT)


def test_small_weights_are_pulled_after_the_clock_of_their_server(job):
    """Two on the first server; that of the second is alone and read as it is."""
    a, b, c = job.variables([1.0] * 4, [1.0] * 9, [1.0] * 4)
    assert [0, 1, 0] == [job.placement.server_of(v) for v in (a, b, c)]

    step = trace(job, lambda: tf.reduce_sum(a) + tf.reduce_sum(b) + tf.reduce_sum(c))

    (pulled,) = step.pulls
    assert 0 == pulled.server
    assert [(4,), (4,)] == [shape for _, _, shape in pulled.reads]
    assert (0, 0) == step.num_commits
    assert step.sequence_numbers_name in step.body.placeholders
