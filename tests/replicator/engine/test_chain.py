"""Chain: collective ops of one program wait for one another, and have their names."""

import pytest
import tensorflow as tf

from replicator.core.topology import FlatGroup, Group
from replicator.engine.chain import Chain
from replicator.engine.emitter import Emitter

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
GPU = CPU.replace("CPU", "GPU")
OPERANDS = {GPU: "x", GPU.replace("GPU:0", "GPU:1"): "y"}
ATTRS = {"merge_op": "Add", "final_op": "Id"}


class Emitted:
    def __init__(self, first_controls=(), *, is_alone=False):
        self.emit = Emitter()
        group = Group(num_workers=2, worker_id=0, order=(0, 1))
        self.flat = FlatGroup(size=4, key=99, keys=group.keys)
        self.chain = Chain(None if is_alone else group, self.emit, first_controls)

    def add(self, name, device=CPU, dtype=tf.float32, **options):
        op = "CollectiveReduceV2"
        return self.chain.add(name, op, ["x"], dtype, device, **ATTRS, **options)

    def reduce_all(self, *names, algorithm="nccl"):
        for name in names:
            self.chain.sum_all(name, self.flat, OPERANDS, tf.float32, algorithm)

    def gate(self, *nodes):
        self.chain.continue_after_gate(dict(zip(OPERANDS, nodes, strict=True)))

    def node(self, name):
        (found,) = [node for node in self.emit.nodes if node.name == name]
        return found

    def number(self, name):
        return tf.make_ndarray(self.node(name).attr["value"].tensor).item()

    def waits(self):
        return {
            node.name: " ".join(
                [
                    *(text for text in node.input if text.startswith("^")),
                    *(f"start-{key}" for key in node.attr["wait_for"].list.i),
                ]
            )
            for node in self.emit.nodes
            if node.op.startswith("CollectiveReduce")
        }


def test_each_collective_waits_for_the_one_before():
    """The first for what the chain was given; a check of shapes takes a place."""
    emitted = Emitted(["batch", "other"])

    emitted.add("a")
    emitted.add("b")
    emitted.chain.continue_after("check")
    emitted.add("c")
    emitted.add("d")

    waits = {"a": "^batch ^other", "b": "^a", "c": "^check", "d": "^c"}
    assert waits == emitted.waits()


def test_nccl_between_processes_waits_for_the_start_of_what_is_before():
    """For the end only where an op of one device is between; keys are 1, 2, 3, ..."""
    emitted = Emitted(["batch"])

    emitted.reduce_all("a", "b")
    emitted.add("c")
    emitted.reduce_all("d", "e")

    before = {
        "a": "^batch",
        "b": "^batch start-1",
        "d": "^c start-2",
        "e": "^c start-4",
    }
    assert {
        "c": "^b_0 ^b_1",
        **{f"{name}_{i}": waits for name, waits in before.items() for i in (0, 1)},
    } == emitted.waits()


def test_what_follows_a_gate_waits_for_its_end_and_the_start_of_what_was_before_it():
    """Nothing waits for the start of an op that a gate may skip: it would not come."""
    emitted = Emitted()

    emitted.reduce_all("a", "gated")
    emitted.gate("m_0", "m_1")
    emitted.reduce_all("b", "gated_too")
    emitted.gate("n_0", "n_1")
    emitted.add("c")

    waits = emitted.waits()
    assert "start-1" == waits["gated_0"]
    assert ["^m_0 start-1", "^m_1 start-1"] == [waits["b_0"], waits["b_1"]]
    assert "^m_0 start-3" == waits["gated_too_0"]
    assert "^n_0 ^n_1 ^b_0 ^b_1" == waits["c"]


@pytest.mark.parametrize(
    ("device", "dtype", "hint"),
    [
        (CPU, tf.float32, b"ring"),
        (GPU, tf.float32, b"nccl"),
        (GPU, tf.float16, b"nccl"),
        # The op accepts bfloat16 with NCCL, and then fails.
        (GPU, tf.bfloat16, b"ring"),
    ],
)
def test_rings_join_cpus_and_nccl_joins_gpus(device, dtype, hint):
    emitted = Emitted()

    emitted.add("a", device, dtype)

    assert hint == emitted.node("a").attr["communication_hint"].s
    assert device == emitted.node("a").device
    assert CPU == emitted.node("a/instance_key").device


def test_a_caller_waits_for_the_ends_of_all_collectives():
    """Of the last one where each waits for the one before; of none that is skipped."""
    nothing, rings, started, gated = (Emitted(["batch"]) for _ in range(4))
    free = Emitted(["batch"], is_alone=True)
    rings.add("a")
    rings.add("b")
    for one in (started, gated, free):
        one.reduce_all("a", "b")
    gated.gate("m_0", "m_1")

    assert [] == nothing.chain.ends
    assert ["b"] == rings.chain.ends
    assert ["b_0", "b_1"] == started.chain.ends
    assert ["a_0", "a_1", "m_0", "m_1"] == gated.chain.ends
    assert ["a_0", "a_1", "b_0", "b_1"] == free.chain.ends
