"""Collectives between GPUs: which ops there are, in which groups, in which order.

No machine of the tests has several GPUs: the nodes are looked at, and ``test_flat.py``
runs them on virtual devices.
"""

import dataclasses

import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator.collectives.kinds import AllReduce
from replicator.core.topology import Group, make_topology
from replicator.engine import body, plan
from replicator.engine.linker import Linker

GPU = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(8)]
SIZES = (7_000_000, 8_000_000)  # too large to be sent together
_BATCHES = ("batch_0", "batch_1")


def link(places, *, kind=None, shapes=None, dtypes=None, group=None):
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
