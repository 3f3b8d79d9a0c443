"""Step: what workers share, and what they keep apart because a step overwrites it."""

import types

import keras
import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training import commit
from replicator.async_training.steps import overwritten, trace_step
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph import body
from replicator.engine.graph.body import Ref
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


class Step:
    def __init__(self, job):
        self.job = job
        self.variables = {}
        self._nodes = []
        self.clocks = {}
        for server in range(2):
            clock = self.variable(f"c{server}", server, tf.zeros([], tf.int64))
            self.clocks[id(clock)] = server

    def variable(self, name, server, value, kind=Kind.MIRRORED):
        place = self.job.cpus[0] if server is None else self.job.cpus[2 + server]
        with tf.device(place):
            made = tf.Variable(value, trainable=False)
        self.variables[name] = made
        self.job.table.require(made, kind)
        self.add(name, "Placeholder")
        return made

    def add(self, name, op, *inputs):
        self._nodes.append(_tf_compat.NodeDef(name=name, op=op, input=list(inputs)))

    def read(self, name, server=0, size=2, dtype=tf.float32, **options):
        self.variable(name, server, tf.zeros([size], dtype), **options)
        self.add(f"read_{name}", "ReadVariableOp", name)

    def read_clocks(self, servers=(0, 1)):
        """As the step does first; in the order of the graph it may be last."""
        for server in servers:
            self.add(f"now_{server}", "ReadVariableOp", f"c{server}")

    def take_out(self):
        traced = types.SimpleNamespace(variables=self.variables)
        graph = body.from_graph_def(_tf_compat.GraphDef(node=self._nodes))
        return commit.take_out(traced, graph, self.job.table, self.clocks)


@pytest.fixture
def step(job):
    return Step(job)


def test_small_variables_of_one_server_travel_together(step):
    """Their reads are inputs now; they come after the server's clock was read.

    Two reads of one variable are replaced by the one value.
    """
    step.read("a")
    step.add("again", "ReadVariableOp", "a")
    step.read("b", size=3)
    step.read_clocks()
    step.add("sum", "Neg", "read_a")

    found, pulls = step.take_out()

    expected = commit.Pull(
        server=0,
        clock="now_0",
        dtype=tf.float32,
        reads=(("a", ("read_a", "again"), (2,)), ("b", ("read_b",), (3,))),
    )
    assert (expected,) == pulls
    assert ["now_0", "now_1", "sum"] == [node.name for node in found.nodes]
    assert {"a", "b", "c0", "c1", "read_a", "again", "read_b"} == found.placeholders


AB = {"a": {}, "b": {}}
BY_THEMSELVES = {"read_a": "now_0", "read_b": "now_0"}
OF_ALL_KINDS = {
    "a": {},
    "b": {"server": 1},
    "c": {"server": 1, "dtype": tf.float64},
    "d": {},
    "e": {"server": 1, "dtype": tf.float64},
    "f": {"server": 1},
}
LIMIT = FUSE_BELOW_BYTES // 4
WRITTEN = (
    ("write", "AssignSubVariableOp", "a", "read_b"),
    ("later", "ReadVariableOp", "a", "^write"),
)
ROWS = (("place", "Const"), ("rows", "ResourceGather", "a", "place"))


@pytest.mark.parametrize(
    ("reads", "others", "messages", "waits"),
    [
        ({}, [("c", "Const")], [], {}),
        (
            OF_ALL_KINDS,
            [],
            [(0, "float32", "ad"), (1, "float32", "bf"), (1, "float64", "ce")],
            {},
        ),
        ({"a": {}, "b": {"dtype": tf.float64}}, [], [], BY_THEMSELVES),
        (AB, WRITTEN, [(0, "float32", "ab")], {"later": "write"}),
        (AB | {"c": {"size": 1}}, [], [(0, "float32", "abc")], {}),
        (AB | {"c": {"size": LIMIT - 1}}, [], [(0, "float32", "abc")], {}),
        (AB | {"c": {"size": LIMIT}}, [], [(0, "float32", "ab")], {"read_c": "now_0"}),
        (AB | {"c": {"size": 0}}, [], [(0, "float32", "ab")], {"read_c": "now_0"}),
        (
            AB | {"c": {"kind": Kind.LOCAL}},
            [],
            [(0, "float32", "ab")],
            {"read_c": "now_0"},
        ),
        (AB, ROWS, [(0, "float32", "ab")], {"rows": "now_0"}),
        ({"a": {"server": None}, "b": {"server": None}}, [], [], {}),
        (
            {"a": {}},
            [("again", "ReadVariableOp", "c0")],
            [],
            {"again": "now_0", "read_a": "now_0"},
        ),
    ],
    ids=[
        "no reads",
        "a message per server and type",
        "a message of one is a read, after the clock",
        "a read after a write gives another value",
        "small",
        "just small",
        "as large as the limit",
        "empty",
        "a copy per replica is not shared",
        "a gather of rows is no read of all",
        "what is on no server has no clock",
        "the first read of a clock counts",
    ],
)
def test_what_is_sent_together(step, reads, others, messages, waits):
    """Messages by server, type and variables; what is read alone waits."""
    step.read_clocks()
    for name, options in reads.items():
        step.read(name, **options)
    for node in others:
        step.add(*node)

    found, pulls = step.take_out()

    assert messages == [
        (each.server, each.dtype.name, "".join(handle for handle, *_ in each.reads))
        for each in pulls
    ]
    assert waits == {n.name: n.controls[0] for n in found.nodes if n.controls}


def test_without_a_clock_nothing_is_taken_out(step):
    """Staleness could not be determined."""
    for name in AB:
        step.read(name)
    step.read_clocks([1])

    found, pulls = step.take_out()

    assert () == pulls
    assert not any(node.controls for node in found.nodes)


def test_one_message_is_read_on_the_server_and_unpacked_on_the_worker(job):
    """Reads wait for the clock; every replaced read has the value of its variable."""
    each = commit.Pull(
        server=1,
        clock="now_1",
        dtype=tf.float32,
        reads=(("a", ("read_a", "again"), (2,)), ("b", ("read_b",), ())),
    )

    nodes, replaced = commit.emit(
        each,
        server_device=job.cpus[1],
        worker_device=job.cpus[0],
        handle=lambda name: f"handle_of_{name}",
        clock="replica_0/now_1",
    )

    reads = [node for node in nodes if node.op == "ReadVariableOp"]
    (packed,) = [node for node in nodes if node.op == "ConcatV2"]
    (split,) = [node for node in nodes if node.op == "SplitV"]
    assert [
        ["handle_of_a", "^replica_0/now_1"],
        ["handle_of_b", "^replica_0/now_1"],
    ] == [list(node.input) for node in reads]
    assert {job.cpus[1]} == {node.device for node in [*reads, packed]}
    assert job.cpus[0] == split.device
    assert {"read_a", "again", "read_b"} == set(replaced)
    assert replaced["read_a"] == replaced["again"] != replaced["read_b"]
    assert isinstance(replaced["read_b"], Ref)
