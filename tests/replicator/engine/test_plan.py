"""Plans: balance, buckets and algorithms, and what updated variables travel with."""

import dataclasses

import pytest
import tensorflow as tf
from graphs import on_devices
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_collectives import plan_of_updates

from replicator._tf import compat as _tf_compat
from replicator.collectives.kinds import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Permute,
    ReduceScatter,
)
from replicator.core import devices as devices_lib
from replicator.core.devices import make_topology
from replicator.engine import plan

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
GPU = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(4)]
SUM, MEAN = AllReduce(op="sum"), AllReduce(op="mean")
PARTS = ReduceScatter(op="sum")
FIRST = Broadcast(source_replica_id=0)
# Of two workers, so that they form no group of NCCL.
OTHER_GPUS = [
    f"/job:worker/replica:0/task:{i}/device:GPU:{k}" for i in range(2) for k in range(2)
]
OTHER_HOSTS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]
REMOTE_GPU = [f"/job:worker/replica:0/task:{i}/device:GPU:0" for i in range(2)]


def _on(devices):
    return make_topology([[device] for device in devices])


def _collective(shapes, kind=SUM, *, n=2, dtypes=None, index=0):
    """A call on tensors of some shapes, float32 unless types are given."""
    places = range(len(shapes))
    return Collective(
        index=index,
        kind=kind,
        num_replicas=n,
        operands=tuple(f"operand_{index}_{place}" for place in places),
        markers=tuple(f"marker_{index}_{place}" for place in places),
        dtypes=tuple(dtypes or [tf.float32] * len(shapes)),
        shapes=tuple(tf.TensorShape(shape) for shape in shapes),
    )


@settings(max_examples=60)
@given(
    calls=st.lists(
        st.lists(st.integers(1, 5000), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    n=st.integers(1, 4),
)
def test_no_owner_combines_more_than_its_share_and_one_tensor(calls, n):
    """Greedy balance: load <= total / R + largest tensor, over all calls together."""
    collectives = [
        _collective([[size] for size in sizes], n=n, index=index)
        for index, sizes in enumerate(calls)
    ]

    plans = plan.make_plan(collectives, _on(CPU[:n]))

    load = [0] * n
    for one in plans:
        for bucket in one.buckets:
            load[bucket.owner] += bucket.num_bytes
    sizes = [4 * size for call in calls for size in call]
    assert sum(sizes) == sum(load)
    assert max(load) <= sum(sizes) / n + max(sizes)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 1_500_000), min_size=1, max_size=60),
    is_double=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_every_tensor_travels_once_in_buckets_of_one_type_within_the_limit(
    sizes, is_double
):
    dtypes = [tf.float64 if d else tf.float32 for d in is_double[: len(sizes)]]
    call = _collective([[size] for size in sizes], dtypes=dtypes)

    (one,) = plan.make_plan([call], _on(OTHER_HOSTS))

    positions = [p for bucket in one.buckets for p in bucket.positions]
    assert list(range(len(sizes))) == sorted(positions)
    for bucket in one.buckets:
        bytes_each = [sizes[p] * dtypes[p].size for p in bucket.positions]
        assert bucket.num_bytes == sum(bytes_each)
        if len(bucket.positions) > 1:
            assert 1 == len({dtypes[p] for p in bucket.positions})
            assert bucket.num_bytes <= plan.PROCESS_BUCKET_BYTES
            assert max(bytes_each) < plan.FUSE_BETWEEN_PROCESSES_BELOW_BYTES


@pytest.mark.parametrize("num_programs", [1, 2])
def test_owners_of_a_sharded_update_cost_gpus_no_reduction(num_programs):
    """All get all sums there, so those of several owners share a bucket."""
    call = _collective([[size] for size in reversed(resnet_50_sizes())])
    depths = {operand: place for place, operand in enumerate(call.operands)}
    places = dataclasses.replace(
        _on(GPU[:2]), num_replicas=2 * num_programs, num_programs=num_programs
    )
    needed_by = {marker: (at % 2,) for at, marker in enumerate(call.markers)}

    (want,) = plan.make_plan([call], places, depths)
    (found,) = plan.make_plan([call], places, depths, needed_by)

    assert want.buckets == found.buckets
    assert len(found.buckets) <= 12
    sizes = [bucket.num_bytes for bucket in found.buckets]
    text = plan.explain([found], places)
    assert f"#0 all_reduce(sum): 161 tensors, {sum(sizes)} bytes per replica, " in text
    assert (
        f"each device starts {len(sizes)} reductions in a step, of {sizes[0]} bytes "
        f"first and {sizes[-1]} bytes last"
    ) in text


def test_an_owner_on_a_gpu_gets_its_sums_with_those_of_others():
    texts = [
        plan_of_updates(on_devices(GPU[:2]), level)[1:5]
        for level in (False, "state", "gradients")
    ]
    assert texts[0] == texts[1] == texts[2]
    assert "algorithm nccl, 1 transfers of which 1 fused" in texts[0][0]


def test_two_workers_of_one_graph_send_resnet_50_in_at_most_36_transfers():
    """There and back; large tensors go alone, and two in three bytes are not copied."""
    call = _collective([[size] for size in reversed(resnet_50_sizes())])
    places = _on(OTHER_HOSTS)

    (one,) = plan.make_plan([call], places)

    assert 2 * 102_228_128 == sum(plan.sent([one], places, [0, 1]).values())
    assert 2 * len(one.buckets) <= 36
    copied = [bucket for bucket in one.buckets if len(bucket.positions) > 1]
    assert sum(bucket.num_bytes for bucket in copied) < 102_228_128 * 0.4


def resnet_50_sizes():
    """Elements of each variable that is trained, from the stem on (He et al. 2016)."""
    sizes = [7 * 7 * 3 * 64, 64, 64]
    depth = 64
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(num_blocks):
            convs = [(depth, 4 * width)] if block == 0 else []
            convs += [(depth, width), (9 * width, width), (width, 4 * width)]
            for inputs, outputs in convs:
                sizes += [inputs * outputs, outputs, outputs]
            depth = 4 * width
    return [*sizes, 2048 * 1000, 1000]


@pytest.mark.parametrize(
    ("devices", "num_buckets"), [(CPU[:2], 3), (GPU[:2], 1), (GPU[:1], 3)]
)
def test_only_replicas_with_memories_of_their_own_fuse(devices, num_buckets):
    """CPUs share memory and one replica sends nothing: no copy into a bucket."""
    call = _collective([[8], [8], [8]], n=len(devices))

    (one,) = plan.make_plan([call], _on(devices))

    assert num_buckets == len(one.buckets)


def test_a_bucket_holds_what_one_part_of_a_replica_computes():
    """Each part has owners of its own, as loaded as each other."""
    call = _collective([[8], [4], [2], [8]])
    parts = {call.operands[1]: 1, call.operands[2]: 1}
    places = make_topology([OTHER_GPUS[:2], OTHER_GPUS[2:]])

    (one,) = plan.make_plan([call], places, None, None, parts)

    found = {b.positions: (b.logical_device, b.owner) for b in one.buckets}
    assert {(0, 3): (0, 0), (1, 2): (1, 0)} == found
    # NCCL takes no part of a replica on its host: all goes through its GPU.
    places = make_topology([[GPU[0], CPU[0]], [GPU[1], CPU[0]]])
    (one,) = plan.make_plan([call], places, None, None, parts)
    assert [((0, 1, 2, 3), 0)] == [(b.positions, b.logical_device) for b in one.buckets]


@pytest.mark.parametrize(
    ("kind", "dtype", "devices", "algorithm"),
    [
        (SUM, tf.float32, CPU[:2], "add_n"),
        (MEAN, tf.float32, GPU[:2], "nccl"),
        (SUM, tf.int64, GPU[:2], "nccl"),
        (SUM, tf.float32, REMOTE_GPU, "add_n"),
        # NCCL takes no bfloat16 here, and needs a device per replica; int32 is not on
        # the GPU.
        (SUM, tf.int32, GPU[:2], "add_n"),
        (SUM, tf.bfloat16, GPU[:2], "add_n"),
        (SUM, tf.uint8, GPU[:2], "add_n"),
        (AllReduce(op="sum", wire_dtype=tf.float16), tf.float32, GPU[:2], "nccl"),
        (AllReduce(op="sum", wire_dtype=tf.bfloat16), tf.float32, GPU[:2], "add_n"),
        (SUM, tf.float32, [GPU[0], GPU[0]], "add_n"),
        (SUM, tf.float32, [GPU[0], CPU[0]], "add_n"),
        (AllReduce(op="min"), tf.float32, GPU[:2], "pairwise"),
        (SUM, tf.float32, GPU[:1], "wire"),
        (AllGather(), tf.float32, CPU[:1], "wire"),
        (AllGather(), tf.float32, GPU[:2], "pack"),
        (FIRST, tf.float32, CPU[:2], "wire"),
        (PARTS, tf.float32, GPU[:2], "parts"),
        (AllToAll(), tf.float32, CPU[:2], "parts"),
        (Permute(pairs=((0, 1),)), tf.float32, CPU[:2], "wire"),
    ],
    ids=str,
)
def test_the_algorithm_follows_from_operation_type_and_devices(
    kind, dtype, devices, algorithm
):
    call = _collective([[4]], kind, n=len(devices), dtypes=[dtype])

    assert [algorithm] == [
        one.algorithm for one in plan.make_plan([call], _on(devices))
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "has_virtual_gpus", "algorithm"),
    [
        # NCCL refuses parts of one GPU; MirroredStrategy has a ring there, too.
        ([4], tf.float32, True, "ring"),
        ([4], tf.bfloat16, True, "ring"),
        ([4], tf.int32, True, "add_n"),
        # Collective ops fix a shape at its first use, and crash on nothing.
        (None, tf.float32, False, "add_n"),
        ([None, 3], tf.float32, False, "add_n"),
        ([0, 3], tf.float32, False, "add_n"),
    ],
)
def test_what_nccl_does_not_take_is_summed_in_another_way(
    shape, dtype, has_virtual_gpus, algorithm
):
    devices = dataclasses.replace(_on(GPU[:2]), has_virtual_gpus=has_virtual_gpus)
    call = _collective([shape, [4]], dtypes=[dtype, dtype])

    assert [algorithm] == [one.algorithm for one in plan.make_plan([call], devices)]


def test_types_that_nccl_is_planned_for_are_types_of_its_op():
    op = _tf_compat.op_def("CollectiveReduceV2")
    (attr,) = [a for a in op.attr if a.name == "T"]
    allowed = {tf.as_dtype(t) for t in attr.allowed_values.list.type}

    assert devices_lib.NCCL_DTYPES < devices_lib.RING_DTYPES < allowed


def test_owners_and_traffic_of_three_gpus_in_each_of_two_processes():
    six = [
        f"/job:worker/replica:0/task:{task}/device:GPU:{gpu}"
        for task in (0, 1)
        for gpu in (0, 1, 2)
    ]
    places = _on(six)
    plans = plan.make_plan([_collective([[16]], n=6)], places)

    assert (1, 1, 1, 4, 4, 4) == places.leaders(1) == places.leaders(4)
    assert (2, 2, 2, 5, 5, 5) == places.leaders(5)
    assert (0, 1, 2) == _on(six[:3]).leaders(1)
    # Where three would have gone there and three back.
    assert {0: 64, 1: 64} == plan.sent(plans, places, [0, 0, 0, 1, 1, 1])
