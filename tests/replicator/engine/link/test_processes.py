"""GPUs of one graph in two processes: one tensor per process and bucket travels."""

import numpy as np
import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator.collectives.kinds.all_reduce import AllReduce
from replicator.engine.analysis import plan, traffic
from replicator.engine.graph import body
from replicator.placement import devices
from replicator.placement.topology import make_topology

EACH_ITS_OWN = (0, 1, 2, 3)
OF_TWO_WORKERS = [
    f"/job:worker/replica:0/task:{task}/device:GPU:{gpu}"
    for task in (0, 1)
    for gpu in (0, 1, 2)
]


def process(device):
    """Two of four CPU devices of this process are taken for those of each of two."""
    return f"process {int(device.rpartition(':')[2]) // 2}"


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch, request):
    if "link" in request.fixturenames:
        monkeypatch.setattr(devices, "process", process)


def arrays_of():
    rng = np.random.default_rng(0)
    shapes = [(4,), (4, 2), ()]
    return [[rng.normal(size=s).astype("f4") for s in shapes] for _ in range(4)]


def crossings(nodes):
    """What is sent from one process to the other: tensors by the device that reads."""
    placed = {node.name: node.device for node in nodes}
    found = set()
    for node in nodes:
        for text in node.input:
            source = placed.get(body.producer(text), "")
            if source and process(source) != process(node.device):
                found.add((text, node.device))
    return found


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("wire_dtype", [None, tf.bfloat16])
def test_a_bucket_crosses_once_there_and_once_back(link, op, wire_dtype):
    """The values are NumPy's, and the same bits on every replica."""
    arrays = arrays_of()
    kind = AllReduce(op=op, wire_dtype=wire_dtype)

    linked = link(kind, arrays, memories=EACH_ITS_OWN)

    assert 1 == len(linked.plans[0].buckets)
    assert 2 == len(crossings(linked.nodes))
    tolerance = 1e-5 if wire_dtype is None else 2e-2
    for index, column in enumerate(zip(*arrays, strict=True)):
        found = [of_replica[index] for of_replica in linked.results]
        want = getattr(np.stack(column), op)(0)
        np.testing.assert_allclose(want, found[0], rtol=tolerance, atol=tolerance)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("needed", [True, False])
def test_a_reduction_that_is_not_needed_is_skipped(link, needed):
    kind = AllReduce(op="mean")

    linked = link(kind, arrays_of(), memories=EACH_ITS_OWN, needed=needed)

    sizes = {result.size for of_replica in linked.results for result in of_replica}
    assert ({1, 4, 8} if needed else {0, 1}) == sizes


def test_the_place_of_an_owner_is_led_by_the_same_place_elsewhere():
    """Owners take turns, and so do the links of GPUs in each process."""
    places = make_topology([[name] for name in OF_TWO_WORKERS])
    alone = make_topology([[name] for name in OF_TWO_WORKERS[:3]])

    assert (1, 1, 1, 4, 4, 4) == places.leaders(1) == places.leaders(4)
    assert (2, 2, 2, 5, 5, 5) == places.leaders(5)
    assert (0, 1, 2) == alone.leaders(1)


def test_traffic_counts_one_tensor_per_process():
    """Of three GPUs each, where three would have gone there and three back."""
    places = make_topology([[name] for name in OF_TWO_WORKERS])
    call = make_call([[16]], AllReduce(op="sum"), num_replicas=6)
    plans = plan.make_plan([call], places)

    assert {0: (64, 1), 1: (64, 1)} == traffic.sent(plans, places, [0, 0, 0, 1, 1, 1])
