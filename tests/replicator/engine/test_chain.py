"""Chain: collective ops of one program wait for one another, and have their names."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.graph.body import Ref
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link.any_size import NUM_LENGTHS
from replicator.engine.link.chain import Chain
from replicator.placement.worker_group import FlatGroup, Group

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
ATTRS = {"merge_op": "Add", "final_op": "Id"}


class Emitted:
    """What a chain emitted."""

    def __init__(self, first_controls=(), num_workers=2):
        """Starts a chain."""
        self.emit = Emitter()
        group = Group(num_workers=num_workers, worker_id=0, order=(0, 1))
        self.chain = Chain(group, self.emit, first_controls)

    def add(self, name, device=CPU, **options):
        """Adds a sum."""
        return self.chain.add(
            name, "CollectiveReduceV2", ["x"], tf.float32, device, ATTRS, **options
        )

    def node(self, name):
        """A node by its name."""
        (found,) = [node for node in self.emit.nodes if node.name == name]
        return found

    def controls(self, name):
        """What a node waits for."""
        return [text for text in self.node(name).input if text.startswith("^")]

    def number(self, name):
        """The value of a constant."""
        return tf.make_ndarray(self.node(name).attr["value"].tensor).item()


def test_each_collective_waits_for_the_one_before():
    """The first for what the chain was given."""
    emitted = Emitted(["batch", "other"])

    refs = [emitted.add(name) for name in "abc"]

    assert [Ref(node=name, port="data:0") for name in "abc"] == refs
    assert ["^batch", "^other"] == emitted.controls("a")
    assert ["^a"] == emitted.controls("b")
    assert ["^b"] == emitted.controls("c")


def test_the_first_of_a_chain_without_controls_waits_for_nothing():
    """A step without batches."""
    emitted = Emitted()
    emitted.add("a")

    assert [] == emitted.controls("a")


def test_the_next_one_may_wait_for_something_else():
    """A check of shapes takes a place in the chain; the one after waits as before."""
    emitted = Emitted()
    emitted.add("a")

    emitted.chain.continue_after("check")
    emitted.add("b")
    emitted.add("c")

    assert ["^check"] == emitted.controls("b")
    assert ["^b"] == emitted.controls("c")


def test_inputs_are_the_data_then_keys_then_the_rest():
    """As TensorFlow's kernels declare them."""
    emitted = Emitted(num_workers=3)

    emitted.add("a", last_inputs=["shape"])

    parts = ["group_size", "group_key", "instance_key"]
    expected = ["x", *(f"a/{part}:output:0" for part in parts), "shape"]
    assert expected == list(emitted.node("a").input)
    assert 3 == emitted.number("a/group_size")
    assert b"Add" == emitted.node("a").attr["merge_op"].s
    assert tf.float32.as_datatype_enum == emitted.node("a").attr["T"].type


def test_no_two_collectives_have_one_instance_key():
    """One of unknown size takes a key for each length that it may have."""
    emitted = Emitted()

    emitted.add("a")
    emitted.add("b", key_offset=Ref(node="offset", port="z:0"))
    emitted.add("c")

    keys = [emitted.number(f"{name}/instance_key") for name in "abc"]
    assert [1, 1 + NUM_LENGTHS] == [after - keys[0] for after in keys[1:]]


def test_the_key_of_a_length_is_the_first_key_and_an_offset(execute):
    """Computed when the step runs, when the length is known."""
    emitted = Emitted()
    emitted.add("a")
    emitted.add("b", key_offset="offset")
    own = Ref(node="b/own_key", port="z:0")
    nodes = [n for n in emitted.emit.nodes if not n.op.startswith("Collective")]
    for node in nodes:
        node.device = ""

    (found,) = execute(nodes, {"offset": np.int32(7)}, [(own, tf.int32)])

    assert 7 + emitted.number("b/instance_key") == found
    assert str(own) in emitted.node("b").input


@pytest.mark.parametrize(
    ("device", "hint"),
    [(CPU, b"ring"), (CPU.replace("CPU", "GPU"), b"nccl")],
)
def test_rings_join_cpus_and_nccl_joins_gpus(device, hint):
    """The keys are numbers on the host in both cases."""
    emitted = Emitted()

    emitted.add("a", device)

    assert hint == emitted.node("a").attr["communication_hint"].s
    assert device == emitted.node("a").device
    assert CPU == emitted.node("a/instance_key").device


def test_devices_of_one_place_form_a_group_of_their_own():
    """The same on all workers; no two places have one key."""
    places = [f"device:{kind}:{i}" for kind in ("CPU", "GPU") for i in range(3)]
    keys = []
    for task in (0, 1):
        emitted = Emitted()
        for index, place in enumerate(places):
            emitted.add(f"n{index}", f"/job:worker/replica:0/task:{task}/{place}")
        keys.append([emitted.number(f"n{i}/group_key") for i in range(len(places))])

    assert keys[0] == keys[1]
    assert len(places) == len(set(keys[0]))


def test_workers_that_emit_the_same_chain_meet(execute, workers):
    """Two sums in a row, on two CPUs of one process."""
    nodes, outputs, arguments = [], [], {}
    for worker, cross_worker in enumerate(workers(2)):
        device = f"/job:localhost/replica:0/task:0/device:CPU:{worker}"
        arguments[f"x_{worker}"] = np.float32([worker + 1, 10])
        ref = f"x_{worker}"
        for time in range(2):
            ref = cross_worker.reduce(
                f"w{worker}_{time}", ref, "sum", tf.float32, tf.TensorShape([2]), device
            )
        nodes += cross_worker.nodes
        outputs.append((ref, tf.float32))

    found = execute(nodes, arguments, outputs)

    assert [[6.0, 40.0]] * 2 == [value.tolist() for value in found]


@pytest.mark.parametrize(
    ("dtype", "hint"), [(tf.float16, b"nccl"), (tf.bfloat16, b"ring")]
)
def test_gpus_form_a_ring_for_types_that_nccl_does_not_take(dtype, hint):
    """The op accepts bfloat16 with NCCL, and then fails."""
    emitted = Emitted()
    gpu = CPU.replace("CPU", "GPU")

    emitted.chain.add("a", "CollectiveReduceV2", ["x"], dtype, gpu, ATTRS)

    assert hint == emitted.node("a").attr["communication_hint"].s


def test_an_op_of_one_device_waits_for_all_of_a_flat_one_before_it():
    """And a flat one after it waits for it on every device."""
    emit = Emitter()
    group = Group(num_workers=2, worker_id=0, order=(0, 1))
    flat = FlatGroup(size=4, key=99, keys=group.keys)
    chain = Chain(group, emit, ["batch"], flat)
    devices = [CPU.replace("CPU:0", f"GPU:{index}") for index in range(2)]
    operands = dict(zip(devices, "xy", strict=True))

    for name in ("a", "b", "d"):
        chain.reduce_all(name, operands, "Add", tf.float32, "nccl")
        if name == "b":
            chain.add("c", "CollectiveReduceV2", ["x"], tf.float32, CPU, ATTRS)

    waits = {
        node.name: [text for text in node.input if text.startswith("^")]
        for node in emit.nodes
        if node.op == "CollectiveReduceV2"
    }
    assert {
        "a_0": ["^batch"],
        "a_1": ["^batch"],
        "b_0": ["^a_0"],
        "b_1": ["^a_1"],
        "c": ["^b_0", "^b_1"],
        "d_0": ["^c"],
        "d_1": ["^c"],
    } == waits
