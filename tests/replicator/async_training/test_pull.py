"""Pull: which reads of a step are sent together, and what the others wait for."""

import types

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training import pull
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph import body
from replicator.engine.graph.body import Ref
from replicator.variables.kinds import Kind


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
        return pull.take_out(traced, graph, self.job.table, self.clocks)


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

    expected = pull.Pull(
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
    each = pull.Pull(
        server=1,
        clock="now_1",
        dtype=tf.float32,
        reads=(("a", ("read_a", "again"), (2,)), ("b", ("read_b",), ())),
    )

    nodes, replaced = pull.emit(
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
