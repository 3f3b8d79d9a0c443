"""Linked collectives: the values are NumPy's, and this is what they cost."""

import numpy as np
import pytest
import tensorflow as tf
from graphs import make_call

from replicator import CollectiveTypeError
from replicator.collectives.kinds import (
    AllConcat,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Permute,
    ReduceScatter,
)
from replicator.core import devices
from replicator.core.devices import make_topology
from replicator.engine import body, plan

OPS = ("sum", "mean", "min", "max")
PIPELINE, PAIRED = Permute(pairs=((0, 1), (1, 2), (2, 3))), Permute(pairs=((1, 0),))
# What a collective makes of the stacked values of all replicas, for each replica.
MEANINGS = {
    **{AllReduce(op=op): lambda x, op=op: [getattr(x, op)(0)] * len(x) for op in OPS},
    **{
        ReduceScatter(op=op): lambda x, op=op: np.split(getattr(x, op)(0), len(x))
        for op in OPS
    },
    AllGather(): lambda x: [x] * len(x),
    AllConcat(): lambda x: [np.concatenate(x)] * len(x),
    Broadcast(source_replica_id=3): lambda x: [x[3]] * len(x),
    AllToAll(): lambda x: [
        np.concatenate([np.split(value, len(x))[r] for value in x])
        for r in range(len(x))
    ],
    PIPELINE: lambda x: [np.zeros_like(x[0]), *x[:-1]],
    PAIRED: lambda x: [x[1], *[np.zeros_like(x[0])] * 3],
}
PLACES = {
    "one memory": ((0, 0, 0, 0), 1),
    "each its own": ((0, 1, 2, 3), 1),
    "two pairs": ((0, 0, 2, 2), 1),
    "in turn": ((0, 1, 0, 1), 1),
    "two workers": ((0, 0), 2),
    "two workers of two memories": ((0, 1), 2),
    "four workers": ((0,), 4),
}


def values(num_replicas=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [((4,), "f4"), ((4, 2), "f4"), ((4, 1, 3), "f8"), ((4,), "f8")]
    return [
        [rng.normal(size=shape).astype(dtype) for shape, dtype in shapes]
        for _ in range(num_replicas)
    ]


def check(linked, kind, arrays):
    for index, column in enumerate(zip(*arrays, strict=True)):
        wanted = MEANINGS[kind](np.stack(column))
        found = [of_replica[index] for of_replica in linked.results]
        for want, got in zip(wanted, found, strict=True):
            assert want.dtype == got.dtype
            np.testing.assert_allclose(want, got, rtol=1e-5, atol=1e-6)
            if kind.is_invariant:
                np.testing.assert_array_equal(found[0], got)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("are_known", [True, False], ids=["static", "unknown"])
@pytest.mark.parametrize("kind", MEANINGS, ids=str)
def test_results_are_those_of_numpy(link, kind, are_known, place):
    memories, num_workers = PLACES[place]
    arrays = values()
    shapes = [[None, *array.shape[1:]] for array in arrays[0]]

    linked = link(
        kind,
        arrays,
        memories=memories,
        num_workers=num_workers,
        shapes=None if are_known else shapes,
    )

    check(linked, kind, arrays)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Four tensors of two types: sums are sent in one bucket per type.
        (AllReduce(op="sum"), {"CollectiveReduceV2": 2}),
        (ReduceScatter(op="sum"), {"CollectiveReduceV2": 4}),
        (AllGather(), {"CollectiveGatherV2": 4}),
        # Of a number of rows that is known: nobody counts, and nobody pads.
        (AllConcat(), {"CollectiveGatherV2": 4}),
        (AllToAll(), {"CollectiveGatherV2": 4}),
        (PIPELINE, {"CollectiveGatherV2": 4}),
        (PAIRED, {}),
    ],
    ids=str,
)
def test_workers_meet_as_often_as_there_are_transfers(link, kind, expected):
    """Each of two workers has these ops; inside a worker nothing is sent."""
    linked = link(kind, values(), num_workers=2)

    names = {node.op for node in linked.nodes if node.op.startswith("Collective")}
    assert {name: 2 * n for name, n in expected.items()} == {
        name: linked.count(name) for name in names
    }


def test_a_broadcast_is_sent_by_one_worker_and_received_by_the_others(link):
    linked = link(
        Broadcast(source_replica_id=3), values(), num_workers=4, memories=(0,)
    )

    assert 4 == linked.count("CollectiveBcastSendV2")
    assert 3 * 4 == linked.count("CollectiveBcastRecvV2")


@pytest.mark.parametrize(
    ("kind", "op", "num_nodes"),
    [
        (AllReduce(op="sum"), "AddN", 4),
        (AllGather(), "Pack", 4),
        (Broadcast(source_replica_id=0), "", 0),
        (PIPELINE, "ZerosLike", 4),
    ],
    ids=str,
)
def test_replicas_of_one_memory_cost_one_node_per_tensor(link, kind, op, num_nodes):
    linked = link(kind, values())

    assert num_nodes == len(linked.nodes) == linked.count(op)


def test_replicas_of_one_memory_are_reduced_there_first(link):
    linked = link(AllReduce(op="mean"), values(), memories=(0, 0, 2, 2))

    # Within memories each tensor by itself, between them one bucket per type.
    assert 2 * 4 + 2 == linked.count("AddN")
    assert 2 == linked.count("Mul")
    assert 2 == len(linked.plans[0].buckets)


def rounded(value):
    return tf.cast(tf.cast(value, tf.bfloat16), value.dtype).numpy()


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("memories", [(0, 1, 2), (0, 1, 1)], ids=str)
def test_what_is_sent_is_rounded_and_summed_in_full_width(link, op, memories):
    """The owner's own memory is not; the result is, so that all have the same bits."""
    arrays = [[x] for x in np.random.default_rng(3).normal(size=(3, 5)).astype("f4")]
    kind = AllReduce(op=op, wire_dtype=tf.bfloat16)

    linked = link(kind, arrays, memories=memories)

    owner = memories[linked.plans[0].buckets[0].owner]
    near = {
        m: [arrays[r][0] for r in range(3) if memories[r] == m] for m in set(memories)
    }
    combine = np.max if op == "max" else np.sum
    partial = {m: combine(xs, axis=0) for m, xs in near.items()}
    total = combine(
        [x if m == owner else rounded(x) for m, x in partial.items()], axis=0
    )
    expected = rounded(total * np.float32(1 / 3) if op == "mean" else total)
    for (result,) in linked.results:
        np.testing.assert_array_equal(expected, result)


@pytest.mark.parametrize("place", ["one memory", "in turn", "two workers"])
@pytest.mark.parametrize("needed", [True, False])
def test_a_reduction_that_is_not_needed_gives_results_without_elements(
    link, needed, place
):
    memories, num_workers = PLACES[place]
    kind, arrays = AllReduce(op="mean"), values()

    linked = link(
        kind, arrays, memories=memories, num_workers=num_workers, needed=needed
    )

    if needed:
        check(linked, kind, arrays)
        return
    for of_replica in linked.results:
        for array, result in zip(arrays[0], of_replica, strict=True):
            assert (0,) * array.ndim == result.shape


@pytest.mark.parametrize("kind", [AllReduce(op="sum"), AllGather()], ids=str)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_scalars_and_empty_tensors_pass(link, kind, num_workers):
    """TensorFlow's collective ops may crash on tensors without elements."""
    shapes = [(), (0,), (2, 0, 3)]
    arrays = [[np.full(shape, r, np.float32) for shape in shapes] for r in range(2)]

    check(link(kind, arrays, num_workers=num_workers), kind, arrays)


CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def process(device):
    """Two of four CPU devices of this process are taken for those of each of two."""
    return f"process {int(device.rpartition(':')[2]) // 2}"


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("wire_dtype", [None, tf.bfloat16])
def test_a_bucket_crosses_between_processes_once_there_and_once_back(
    link, monkeypatch, op, wire_dtype
):
    monkeypatch.setattr(devices, "process", process)
    arrays = [[x.astype("f4") for x in of_replica] for of_replica in values()]
    kind = AllReduce(op=op, wire_dtype=wire_dtype)

    linked = link(kind, arrays, memories=(0, 1, 2, 3))

    placed = {node.name: process(node.device) for node in linked.nodes}
    crossings = {
        (text, node.device)
        for node in linked.nodes
        for text in node.input
        if placed.get(body.producer(text), placed[node.name]) != placed[node.name]
    }
    assert 1 == len(linked.plans[0].buckets)
    assert 2 == len(crossings)
    tolerance = 1e-5 if wire_dtype is None else 2e-2
    for index, column in enumerate(zip(*arrays, strict=True)):
        found = [of_replica[index] for of_replica in linked.results]
        want = getattr(np.stack(column), op)(0)
        np.testing.assert_allclose(want, found[0], rtol=tolerance, atol=tolerance)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


def test_owners_and_traffic_of_three_gpus_in_each_of_two_processes():
    six = [
        f"/job:worker/replica:0/task:{task}/device:GPU:{gpu}"
        for task in (0, 1)
        for gpu in (0, 1, 2)
    ]
    places = make_topology([[name] for name in six])
    plans = plan.make_plan(
        [make_call([[16]], AllReduce(op="sum"), num_replicas=6)], places
    )

    assert (1, 1, 1, 4, 4, 4) == places.leaders(1) == places.leaders(4)
    assert (2, 2, 2, 5, 5, 5) == places.leaders(5)
    assert (0, 1, 2) == make_topology([[name] for name in six[:3]]).leaders(1)
    # Where three would have gone there and three back.
    assert {0: 64, 1: 64} == plan.sent(plans, places, [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    "counts", [(2, 3), (3, 2), (0, 2), (0, 0), (4, 4), (1, 0, 5)], ids=str
)
def test_rows_are_joined_by_worker_without_padding(link, counts):
    arrays = [
        [
            np.arange(n, dtype="f4") + 100 * w,
            np.arange(2 * n, dtype="f4").reshape(n, 2) + 100 * w,
        ]
        for w, n in enumerate(counts)
    ]

    linked = link(
        AllConcat(), arrays, num_workers=len(counts), shapes=[[None], [None, 2]]
    )

    for found in linked.results:
        for index, column in enumerate(zip(*arrays, strict=True)):
            np.testing.assert_array_equal(np.concatenate(column), found[index])
    assert len(counts) * (1 + 2) == linked.count("CollectiveGatherV2")


def test_rows_without_elements_are_known_without_asking(link):
    arrays = [[np.zeros((0, 3), "f4"), np.zeros((2, 0), "f4")]] * 4

    linked = link(AllConcat(), arrays, num_workers=2)

    assert [(0, 3), (8, 0)] == [found.shape for found in linked.results[0]]
    assert 0 == linked.count("CollectiveGatherV2")


def test_rows_of_unknown_rank_are_refused(link):
    with pytest.raises(
        CollectiveTypeError,
        match=r"float32 rows of unknown rank cannot be sent between",
    ):
        link(AllConcat(), [[np.zeros(2, "f4")]] * 2, num_workers=2, shapes=[None])
