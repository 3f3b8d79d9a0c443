"""Step: what workers share, and what they keep apart because a step overwrites it."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training.commit_state import CommitState
from replicator.async_training.placement import Placement
from replicator.async_training.step import overwritten, trace_step
from replicator.async_training.table import ServerTable
from replicator.engine.graph import body
from replicator.errors import UnsynchronisedUpdateError
from replicator.placement.topology import make_topology
from replicator.variables.kinds import Kind

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
_NAMES = itertools.count()


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


class Job:
    """Workers and servers that are devices of this process."""

    def __init__(self, num_workers=2, share=1):
        """Makes the variables that a replicator has."""
        every = [[CPU[0]]] * (num_workers * share)
        self.placement = Placement(2)
        self.placement.devices = tuple(CPU[1:3])
        self.topology = make_topology(
            every[:share], num_replicas=share, first_replica_id=0
        )
        self.table = ServerTable(make_topology(every), num_workers, self.placement)
        name = f"step of a test {next(_NAMES)}"
        self.commit_states = [
            CommitState(device, num_workers, name) for device in CPU[1:3]
        ]

    def trace(self, step_fn, *specs):
        """Traces a step."""
        return trace_step(
            step_fn,
            specs,
            name=f"step_of_a_test_{next(_NAMES)}",
            topology=self.topology,
            table=self.table,
            commit_states=self.commit_states,
        )

    def variables(self, *values, **kwargs):
        """Variables on the servers."""
        with self.placement.scope():
            return [tf.Variable(value, **kwargs) for value in values]


def test_what_a_step_overwrites_gets_a_copy_per_replica():
    """What it adds to or reads is shared."""
    job = Job()
    kept, added, read = job.variables([0.0], [0.0], [3.0], trainable=False)

    def step():
        kept.assign(read + 1.0)
        added.assign_add(read)

    job.trace(step)

    assert [Kind.LOCAL, Kind.MIRRORED, Kind.MIRRORED] == [
        job.table.kind(variable) for variable in (kept, added, read)
    ]


@pytest.mark.parametrize("share", [1, 2])
def test_one_worker_shares_what_its_replicas_overwrite_alike(share):
    """They are in sync."""
    job = Job(num_workers=1, share=share)
    (kept,) = job.variables([0.0], trainable=False)

    job.trace(lambda: kept.assign(kept * 2.0))

    assert Kind.MIRRORED is job.table.kind(kept)


def test_replicas_of_one_worker_keep_apart_what_differs():
    """A statistic of each one's batch."""
    job = Job(num_workers=1, share=2)
    (kept,) = job.variables([0.0], trainable=False)

    job.trace(kept.assign, tf.TensorSpec([1]))

    assert Kind.LOCAL is job.table.kind(kept)


def test_a_weight_that_is_overwritten_is_refused():
    """By two workers; its step would lose updates."""
    job = Job()
    (weight,) = job.variables([0.0])

    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"overwritten \(assign\) by 2 asynchronous workers",
    ):
        job.trace(lambda: weight.assign(weight * 2.0))


def test_a_weight_that_is_added_to_is_accepted():
    """Nothing is lost; it is shared."""
    job = Job()
    (weight,) = job.variables([0.0])

    job.trace(lambda: weight.assign_sub([1.0]))

    assert Kind.MIRRORED is job.table.kind(weight)


def test_small_weights_are_pulled_after_the_clock_of_their_server():
    """Two on the first server; that of the second is alone and read as it is."""
    job = Job()
    a, b, c = job.variables([1.0] * 4, [1.0] * 9, [1.0] * 4)
    assert [0, 1, 0] == [job.placement.server_of(v) for v in (a, b, c)]

    step = job.trace(lambda: tf.reduce_sum(a) + tf.reduce_sum(b) + tf.reduce_sum(c))

    (pulled,) = step.pulls
    assert 0 == pulled.server
    assert [(4,), (4,)] == [shape for _, _, shape in pulled.reads]
    assert (0, 0) == step.num_commits
    assert step.sequence_numbers_name in step.body.placeholders
