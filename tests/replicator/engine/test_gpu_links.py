"""Collectives between GPUs: which ops there are, in which groups, in which order.

No machine of the tests has several GPUs: the nodes are looked at, and ``test_flat.py``
runs them on virtual devices.
"""

import dataclasses

import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator._tf import compat as _tf_compat
from replicator.collectives.kind import Transfer
from replicator.collectives.kinds import AllReduce
from replicator.core.topology import Group, make_topology
from replicator.engine.analysis import plan
from replicator.engine.graph import body
from replicator.engine.graph.body import Ref
from replicator.engine.link.cross_worker import CrossWorker
from replicator.engine.link.linker import Linker
from replicator.engine.run.assembly import PackedOutputs

GPU = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(8)]
SIZES = (7_000_000, 8_000_000)  # too large to be sent together
_BATCHES = ("batch_0", "batch_1")


def link(places, *, kind=None, shapes=None, dtypes=None, workers=None):
    """Plans and links a reduction; returns the plan, nodes, and results by marker."""
    call = make_call(
        shapes or [[size] for size in SIZES],
        kind or AllReduce(op="sum"),
        num_replicas=places.num_replicas,
        dtypes=dtypes,
    )
    (planned,) = plan.make_plan([call], places)
    linker = Linker(places, "step", workers, _BATCHES)
    linker.link(planned, lambda replica, node: f"in_{replica}_{node}")
    nodes = [*linker.nodes, *(workers.nodes if workers else ())]
    return planned, {node.name: node for node in nodes}, linker.results


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


def test_gpus_sum_what_is_sent_narrow_in_the_narrow_type():
    """NCCL has no wider sum; a mean is scaled on each device."""
    kind = AllReduce(op="mean", wire_dtype=tf.float16)

    _, nodes, _ = link(on(GPU[:2]), kind=kind, shapes=[[3]])

    half = tf.float16.as_datatype_enum
    assert [half] * 2 == [node.attr["T"].type for node in sums(nodes)]
    assert 2 == sum(node.op == "Mul" for node in nodes.values())


def waits(nodes, op):
    return {
        node.name.removeprefix("step/collective_"): [
            text.removeprefix("^step/collective_")
            for text in node.input
            if text.startswith("^")
        ]
        for node in nodes.values()
        if node.op == op
    }


def test_collectives_of_one_process_wait_for_batches_only():
    """NCCL starts the parts of one op on all devices at once, in one order.

    An op that waited for the end of its predecessor would be queued behind a backward
    pass. What waits for batches are its keys, which are constants without inputs
    (``tests/workloads/resnet50/test_executed_graph.py``).
    """
    _, nodes, _ = link(on(GPU[:2]))

    names = [f"0_{bucket}/all_{place}" for bucket in (0, 1) for place in (0, 1)]
    assert {name: [] for name in names} == waits(nodes, "CollectiveReduceV2")
    for name in names:
        key = nodes[f"step/collective_{name}/group_key"]
        assert ("Const", []) == (key.op, [*key.input])


def test_the_same_gpus_always_form_the_same_group():
    """NCCL keeps memory for each group; other GPUs are another one."""
    groups = []
    for devices in (GPU[:2], GPU[:2], GPU[2:4]):
        _, nodes, _ = link(on(devices))
        node = sums(nodes)[0]
        groups.append((number(nodes, node, 2), number(nodes, node, 3)))

    (first, key), (again, other_key), (elsewhere, _) = groups
    assert first == again != elsewhere
    assert key != other_key


def test_two_programs_of_eight_gpus_form_one_group():
    """Sixteen replicas: before, there were eight groups of two, one after the other."""
    places = make_topology([[name] for name in GPU], num_replicas=16, num_programs=2)
    group = Group(num_workers=2, worker_id=0, order=(0, 1))
    workers = CrossWorker(group, _BATCHES)

    planned, nodes, _ = link(places, kind=AllReduce(op="mean"), workers=workers)

    found = [node for node in nodes.values() if node.op == "CollectiveReduce"]
    assert "nccl" == planned.algorithm
    assert 8 * len(planned.buckets) == len(found)
    assert {16} == {node.attr["group_size"].i for node in found}
    assert 1 == len({node.attr["group_key"].i for node in found})
    assert not [node for node in nodes.values() if node.op == "AddN"]


def test_every_node_the_linker_emits_is_well_formed():
    """Inputs exist, and attributes are those that the op declares."""
    dtypes = [tf.float32, tf.float64, tf.float32]
    for op in ("sum", "mean", "min"):
        kind = AllReduce(op=op)
        _, nodes, _ = link(
            on(GPU[:3]), kind=kind, shapes=[[3], [2, 2], []], dtypes=dtypes
        )

        for node in nodes.values():
            declared = {attr.name for attr in _tf_compat.op_def(node.op).attr}
            assert set(node.attr) <= declared
            producers = {body.producer(text) for text in node.input} - {*_BATCHES}
            assert {p for p in producers if not p.startswith("in_")} <= set(nodes)


HERE = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in (0, 0)]
THERE = [f"/job:localhost/replica:0/task:1/device:CPU:{i}" for i in (0, 1)]
SPECS = [
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([2, 1], tf.float32),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.string),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([16 * 1024], tf.float32),
]
# Of each of the last two replicas: those of float32, and the int64s.
VECTORS = [tf.TensorSpec([6], tf.float32), tf.TensorSpec([2], tf.int64)]


def _packed(places):
    return PackedOutputs(SPECS, make_topology([[p] for p in places]))


def test_small_numbers_of_another_process_are_one_vector_per_type():
    """What is large, of unknown size or no number is returned alone."""
    packed = _packed(HERE + THERE)

    assert 2 * SPECS + 2 * SPECS[3:] + VECTORS == packed.specs
    refs = [Ref(node=f"out_{p}", port="y:0") for p in range(4 * len(SPECS))]
    returned, nodes = packed.pack(refs, "step")
    assert len(packed.specs) == len(returned)
    assert refs[:12] + refs[15:18] + refs[21:24] == returned[:-2]
    joined = [node for node in nodes if node.op == "ConcatV2"]
    assert [THERE[0]] * 2 == [node.device for node in joined]


def test_the_caller_gets_outputs_in_their_order():
    packed = _packed(HERE + THERE)
    shapes = [[1 if d is None else d for d in spec.shape] for spec in SPECS]
    alone = [
        tf.fill(shape, "of" if spec.dtype == tf.string else tf.cast(1, spec.dtype))
        for spec, shape in [
            *2 * list(zip(SPECS, shapes, strict=True)),
            *2 * list(zip(SPECS[3:], shapes[3:], strict=True)),
        ]
    ]
    vectors = [tf.range(6.0), tf.constant([7, 8], tf.int64)]

    outputs = packed.unpack([*alone, *vectors])

    assert 4 * shapes == [output.shape.as_list() for output in outputs]
    assert [0.0, 3.0] == [float(outputs[p]) for p in (12, 18)]
    assert [[[1.0], [2.0]], [[4.0], [5.0]]] == [
        outputs[p].numpy().tolist() for p in (13, 19)
    ]
    assert [7, 8] == [int(outputs[p]) for p in (14, 20)]


def test_what_is_sent_to_the_caller_is_counted():
    """Each transfer from the first replica that it holds something of."""
    sent = _packed(HERE + THERE).transfers

    assert Transfer(source=2, target=0, num_bytes=6 * 4) == sent[-2]
    assert Transfer(source=2, target=0, num_bytes=2 * 8) == sent[-1]
    assert [0] * 6 + [1] * 6 + [2] * 3 + [3] * 3 == [of.source for of in sent[:-2]]


def test_nothing_is_packed_in_one_process():
    assert 4 * SPECS == _packed(HERE + HERE).specs
