"""Collective ops of one program: their order, their names, and those between GPUs.

No machine of the tests has several GPUs: the nodes are looked at, and ``test_flat.py``
runs them on virtual devices.
"""

import dataclasses

import pytest
import tensorflow as tf
from graphs import make_call

from replicator.collectives.kinds import AllReduce
from replicator.core.devices import FlatGroup, Group, make_topology
from replicator.engine import body, plan
from replicator.engine.linker import Linker

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
ONE_GPU = CPU.replace("CPU", "GPU")
OPERANDS = {ONE_GPU: "x", ONE_GPU.replace("GPU:0", "GPU:1"): "y"}
ATTRS = {"merge_op": "Add", "final_op": "Id"}


class Emitted:
    def __init__(self, first_controls=(), *, is_alone=False):
        group = Group(num_workers=2, worker_id=0, order=(0, 1))
        self.flat = FlatGroup(size=4, key=99, keys=group.keys)
        places, alone = make_topology([[CPU]]), None if is_alone else group
        linker = Linker(places, "step", alone, first_controls)
        self.chain, self.nodes = linker.chain, linker.nodes

    def add(self, name, device=CPU, dtype=tf.float32, **options):
        op = "CollectiveReduceV2"
        return self.chain.add(name, op, ["x"], dtype, device, **ATTRS, **options)

    def reduce_all(self, *names, algorithm="nccl"):
        for name in names:
            self.chain.sum_all(name, self.flat, OPERANDS, tf.float32, algorithm)

    def gate(self, *nodes):
        self.chain.continue_after_gate(dict(zip(OPERANDS, nodes, strict=True)))

    def node(self, name):
        (found,) = [node for node in self.nodes if node.name == name]
        return found

    def waits(self):
        return {
            node.name: " ".join(
                [
                    *(text for text in node.input if text.startswith("^")),
                    *(f"start-{key}" for key in node.attr["wait_for"].list.i),
                ]
            )
            for node in self.nodes
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
        (ONE_GPU, tf.float32, b"nccl"),
        (ONE_GPU, tf.float16, b"nccl"),
        # The op accepts bfloat16 with NCCL, and then fails.
        (ONE_GPU, tf.bfloat16, b"ring"),
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


GPU = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(8)]
SIZES = (7_000_000, 8_000_000)  # too large to be sent together
_BATCHES = ("batch_0", "batch_1")


def link(places, *, kind=None, shapes=None, group=None, dtypes=None):
    call = make_call(
        shapes or [[size] for size in SIZES],
        kind or AllReduce(op="sum"),
        num_replicas=places.num_replicas,
        dtypes=dtypes,
    )
    (planned,) = plan.make_plan([call], places)
    linker = Linker(places, "step", group, _BATCHES)
    linker.link(planned, lambda replica, node: f"in_{replica}_{node}")
    return planned, {node.name: node for node in linker.nodes}, linker.results


def on(devices):
    return make_topology([[device] for device in devices])


def sums(nodes):
    return [node for node in nodes.values() if node.op == "CollectiveReduceV2"]


def number(nodes, node, position):
    const = nodes[body.producer(node.input[position])]
    return tf.make_ndarray(const.attr["value"].tensor).item()


@pytest.mark.parametrize(
    ("has_virtual_gpus", "hint"), [(False, b"nccl"), (True, b"ring")]
)
def test_gpus_meet_in_one_op_per_transfer(has_virtual_gpus, hint):
    """One op per replica, on its device; NCCL refuses two parts of one GPU."""
    places = dataclasses.replace(on(GPU[:3]), has_virtual_gpus=has_virtual_gpus)

    planned, nodes, results = link(places, shapes=[[4], [7_000_000], []])

    by_instance = {}
    for node in sums(nodes):
        assert 3 == number(nodes, node, 1)
        assert number(nodes, sums(nodes)[0], 2) == number(nodes, node, 2)
        assert hint == node.attr["communication_hint"].s
        by_instance.setdefault(number(nodes, node, 3), []).append(node.device)
        # int32 on a GPU is in host memory: the keys cross no device.
        keys = {body.producer(text) for text in node.input[1:4]}
        assert {node.device} == {nodes[key].device for key in keys}
    assert 2 == len(planned.buckets) == len(by_instance)
    assert [GPU[:3]] * 2 == list(by_instance.values())
    for by_replica in results.values():
        assert GPU[:3] == [nodes[ref.node].device for ref in by_replica]


def test_collectives_of_one_process_wait_for_batches_only():
    """NCCL starts the parts of one op on all devices at once, in one order."""
    # An op that waited for the end of its predecessor would be queued behind a backward
    # pass. What waits for batches are its keys, which are constants without inputs
    # (``tests/workloads/resnet50/test_executed_graph.py``).
    _, nodes, _ = link(on(GPU[:2]))

    for name in (f"0_{bucket}/all_{index}" for bucket in (0, 1) for index in (0, 1)):
        node = nodes[f"step/collective_{name}"]
        key = nodes[f"step/collective_{name}/group_key"]
        assert not [text for text in node.input if text.startswith("^")]
        assert ("Const", []) == (key.op, [*key.input])


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("GPU", tf.float32, "GPU:2"),
        ("GPU", tf.int8, "CPU:0"),
        ("CPU", tf.int8, "CPU:2"),
    ],
)
def test_a_type_without_gpu_kernel_is_combined_on_the_cpu_of_the_same_process(
    kind, dtype, expected
):
    names = [f"/job:worker/replica:0/task:3/device:{kind}:{i}" for i in (2, 1)]

    _, nodes, _ = link(on(names), shapes=[[None]], dtypes=[dtype])

    (total,) = [node for node in nodes.values() if node.op == "AddN"]
    assert f"/job:worker/replica:0/task:3/device:{expected}" == total.device


def test_two_programs_of_eight_gpus_form_one_group():
    """Sixteen replicas: before, there were eight groups of two, one after the other."""
    places = make_topology([[name] for name in GPU], num_replicas=16, num_programs=2)
    group = Group(num_workers=2, worker_id=0, order=(0, 1))

    planned, nodes, _ = link(places, kind=AllReduce(op="mean"), group=group)

    found = [node for node in nodes.values() if node.op == "CollectiveReduce"]
    assert "nccl" == planned.algorithm
    assert 8 * len(planned.buckets) == len(found)
    assert {16} == {node.attr["group_size"].i for node in found}
    assert 1 == len({node.attr["group_key"].i for node in found})
    assert not [node for node in nodes.values() if node.op == "AddN"]
