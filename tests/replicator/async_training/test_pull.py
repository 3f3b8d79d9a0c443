"""Pull: which reads of a step are sent together, and what the others wait for."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training import pull
from replicator.async_training.placement import Placement
from replicator.async_training.table import ServerTable
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph import body
from replicator.engine.graph.body import Ref
from replicator.placement.topology import make_topology
from replicator.variables.kinds import Kind

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


class Step:
    """A step that reads variables of two servers."""

    def __init__(self):
        """Starts without reads, but for the clocks of the servers ``c0`` and ``c1``."""
        placement = Placement(2)
        placement.devices = tuple(CPU[1:3])
        topology = make_topology([[CPU[0]], [CPU[3]]])
        self.table = ServerTable(topology, 2, placement)
        self.variables = {}
        self._nodes = []
        self.clocks = {}
        for server in range(2):
            clock = self.variable(f"c{server}", server, tf.zeros([], tf.int64))
            self.clocks[id(clock)] = server

    def variable(self, name, server, value, kind=Kind.MIRRORED):
        """A variable on a server, or of this process (None)."""
        with tf.device(CPU[0] if server is None else CPU[1 + server]):
            made = tf.Variable(value, trainable=False)
        self.variables[name] = made
        self.table.require(made, kind)
        self._nodes.append(_tf_compat.NodeDef(name=name, op="Placeholder"))
        return made

    def add(self, name, op, *inputs):
        """A node of the graph."""
        self._nodes.append(_tf_compat.NodeDef(name=name, op=op, input=list(inputs)))

    def read(self, name, server=0, size=2, dtype=tf.float32, **options):
        """A variable and a read of it, ``read_<name>``."""
        self.variable(name, server, tf.zeros([size], dtype), **options)
        self.add(f"read_{name}", "ReadVariableOp", name)

    def read_clocks(self):
        """As the step does first; in the order of the graph it may be last."""
        for server in range(2):
            self.add(f"now_{server}", "ReadVariableOp", f"c{server}")

    def take_out(self):
        """Takes out what is sent together."""
        traced = types.SimpleNamespace(variables=self.variables)
        graph = body.from_graph_def(_tf_compat.GraphDef(node=self._nodes))
        return pull.take_out(traced, graph, self.table, self.clocks)


def names(found):
    """The nodes of a body."""
    return [node.name for node in found.nodes]


def controls(found):
    """What the nodes of a body wait for, where they wait."""
    return {node.name: node.controls for node in found.nodes if node.controls}


@pytest.fixture
def step():
    """A step in the making."""
    return Step()


def test_small_variables_of_one_server_travel_together(step):
    """Their reads are inputs now; they come after the server's clock was read."""
    step.read("a")
    step.read("b", size=3)
    step.read_clocks()
    step.add("sum", "Neg", "read_a")

    found, pulls = step.take_out()

    expected = pull.Pull(
        server=0,
        clock="now_0",
        dtype=tf.float32,
        reads=(("a", ("read_a",), (2,)), ("b", ("read_b",), (3,))),
    )
    assert (expected,) == pulls
    assert ["now_0", "now_1", "sum"] == names(found)
    assert {"a", "b", "c0", "c1", "read_a", "read_b"} == found.placeholders


def test_every_server_and_type_has_a_message_of_its_own(step):
    """Two servers, and two types on one of them."""
    step.read_clocks()
    for name, server, dtype in (
        ("a", 0, tf.float32), ("b", 1, tf.float32), ("c", 1, tf.float64),
        ("d", 0, tf.float32), ("e", 1, tf.float64), ("f", 1, tf.float32),
    ):  # fmt: skip
        step.read(name, server, dtype=dtype)

    _, pulls = step.take_out()

    assert [
        (0, "now_0", tf.float32, ["a", "d"]),
        (1, "now_1", tf.float32, ["b", "f"]),
        (1, "now_1", tf.float64, ["c", "e"]),
    ] == [(p.server, p.clock, p.dtype, [r[0] for r in p.reads]) for p in pulls]


def test_two_reads_of_one_variable_travel_once(step):
    """Both are replaced by the one value."""
    step.read_clocks()
    step.read("a")
    step.add("again", "ReadVariableOp", "a")
    step.read("b")

    found, (each,) = step.take_out()

    assert ("a", ("read_a", "again"), (2,)) == each.reads[0]
    assert {"read_a", "again"} <= found.placeholders


def test_a_variable_alone_is_read_as_it_was_but_after_the_clock(step):
    """A message of one is a read."""
    step.read_clocks()
    step.read("a")
    step.read("b", dtype=tf.float64)

    found, pulls = step.take_out()

    assert () == pulls
    assert {"read_a": ("now_0",), "read_b": ("now_0",)} == controls(found)


def test_a_read_after_a_write_stays_where_it_is(step):
    """It has control edges, and gives another value."""
    step.read_clocks()
    step.read("a")
    step.read("b")
    step.add("write", "AssignSubVariableOp", "a", "read_b")
    step.add("later", "ReadVariableOp", "a", "^write")

    found, (each,) = step.take_out()

    assert (("a", ("read_a",), (2,)), ("b", ("read_b",), (2,))) == each.reads
    assert ("write",) == controls(found)["later"]


@pytest.mark.parametrize(
    ("size", "is_pulled"),
    [
        (1, True),
        (FUSE_BELOW_BYTES // 4 - 1, True),
        (FUSE_BELOW_BYTES // 4, False),
        (0, False),
    ],
    ids=["small", "just small", "as large as the limit", "empty"],
)
def test_only_small_variables_are_copied_into_a_message(step, size, is_pulled):
    """A large one is sent alone; all come after the clock."""
    step.read_clocks()
    for name in "ab":
        step.read(name)
    step.read("c", size=size)

    found, (each,) = step.take_out()

    assert is_pulled == ("c" in [handle for handle, _, _ in each.reads])
    assert ({} if is_pulled else {"read_c": ("now_0",)}) == controls(found)


def test_a_variable_with_a_copy_per_replica_is_not_shared(step):
    """Every replica reads another one."""
    step.read_clocks()
    for name in "ab":
        step.read(name)
    step.read("local", kind=Kind.LOCAL)

    found, (each,) = step.take_out()

    assert ["a", "b"] == [handle for handle, _, _ in each.reads]
    assert {"read_local": ("now_0",)} == controls(found)


def test_a_gather_of_rows_is_no_read_of_all(step):
    """It waits for the clock, and only what is gathered is sent."""
    step.read_clocks()
    for name in "ab":
        step.read(name)
    step.add("place", "Const")
    step.add("rows", "ResourceGather", "a", "place")

    found, _ = step.take_out()

    assert {"rows": ("now_0",)} == controls(found)


def test_what_is_on_no_server_is_left_alone(step):
    """A variable of this process has no clock."""
    step.read_clocks()
    for name in "ab":
        step.read(name, None)

    found, pulls = step.take_out()

    assert () == pulls
    assert {} == controls(found)


def test_without_a_clock_nothing_is_taken_out(step):
    """Staleness could not be determined."""
    for name in "ab":
        step.read(name)
    step.add("now_1", "ReadVariableOp", "c1")

    found, pulls = step.take_out()

    assert () == pulls
    assert {} == controls(found)


def test_the_first_read_of_a_clock_is_the_one_that_counts(step):
    """A second one, of the step's own, waits for it."""
    step.read_clocks()
    step.add("again", "ReadVariableOp", "c0")
    step.read("a")

    found, _ = step.take_out()

    assert {"again": ("now_0",), "read_a": ("now_0",)} == controls(found)


def test_a_step_without_reads_stays_as_it_is(step):
    """Also an empty one."""
    found, pulls = step.take_out()
    assert ([], ()) == (names(found), pulls)

    step.add("c", "Const")
    assert ["c"] == names(step.take_out()[0])


def test_one_message_is_read_on_the_server_and_unpacked_on_the_worker():
    """Reads wait for the clock; every replaced read has the value of its variable."""
    each = pull.Pull(
        server=1,
        clock="now_1",
        dtype=tf.float32,
        reads=(("a", ("read_a", "again"), (2,)), ("b", ("read_b",), ())),
    )

    nodes, replaced = pull.emit(
        each,
        server_device=CPU[1],
        worker_device=CPU[0],
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
    assert {CPU[1]} == {node.device for node in [*reads, packed]}
    assert CPU[0] == split.device
    assert {"read_a", "again", "read_b"} == set(replaced)
    assert replaced["read_a"] == replaced["again"] != replaced["read_b"]
    assert isinstance(replaced["read_b"], Ref)
