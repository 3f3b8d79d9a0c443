"""What travels between processes: buckets, shares, padded tensors and uneven rows."""

import numpy as np
import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator.collectives.kinds import AllReduce
from replicator.core import devices
from replicator.core.topology import make_topology
from replicator.engine.analysis import plan
from replicator.engine.analysis.plan import Share
from replicator.engine.graph import body
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import fragments
from replicator.engine.link.cross_worker import UnevenRows, send_share
from replicator.errors import CollectiveTypeError

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
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

    assert {0: (64, 1), 1: (64, 1)} == plan.sent(plans, places, [0, 0, 0, 1, 1, 1])


def make_shares(shapes, source):
    return [
        Share(
            node=f"update_{i}",
            handle=f"v_{i}",
            source=source,
            dtype=tf.float64,
            shape=tf.TensorShape(shape),
        )
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("shapes", [[(2, 3)], [(3,), (), (2, 2)]], ids=["one", "three"])
def test_every_program_has_the_values_of_the_source(execute, workers, shapes, source):
    """In their shapes, in one transfer, whoever updates."""
    shares = make_shares(shapes, source)
    values = [np.random.default_rng(i).normal(size=s) for i, s in enumerate(shapes)]
    sent = {(s.node, s.handle): f"new_{i}" for i, s in enumerate(shares)}
    nodes, outputs = [], []
    for worker, cross_worker in enumerate(workers(3)):
        found, more = send_share(
            shares,
            f"w{worker}",
            cross_worker,
            sent if worker == source else {},
            CPU[worker],
        )
        assert list(sent) == list(found)
        nodes += more + cross_worker.nodes
        outputs += [(ref, tf.float64) for ref in found.values()]

    results = execute(nodes, {f"new_{i}": v for i, v in enumerate(values)}, outputs)

    for worker in range(3):
        mine = results[worker * len(values) : (worker + 1) * len(values)]
        for value, result in zip(values, mine, strict=True):
            np.testing.assert_array_equal(value, result)
    sends = [node for node in nodes if node.op == "CollectiveBcastSendV2"]
    receives = [node for node in nodes if node.op == "CollectiveBcastRecvV2"]
    assert (1, 2) == (len(sends), len(receives))


SIZES = [
    (0, 1, 0),
    (1, 1, 0),
    (2, 2, 1),
    (3, 4, 2),
    (4, 4, 2),
    (9, 16, 4),
    (1024, 1024, 10),
]


@pytest.mark.parametrize(("size", "length", "offset"), SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_tensor_is_padded_to_the_next_power_of_two(
    execute, size, length, offset, dtype
):
    """The offset is the exponent; no tensor without elements is sent."""
    value = np.arange(size, dtype=dtype).reshape(1, size) + 1
    emit, tf_dtype = Emitter(), tf.as_dtype(dtype)
    sent = fragments.pad_any_size(emit, "sent", "x", tf_dtype, CPU[1])
    outputs = [
        (sent.value, tf_dtype),
        (sent.key_offset, tf.int32),
        (sent.num_elements, tf.int32),
    ]

    vector, key_offset, num_elements = execute(emit.nodes, {"x": value}, outputs)

    expected = np.concatenate([value[0], np.zeros(length - size, dtype)])
    np.testing.assert_array_equal(expected, vector)
    assert offset == key_offset
    assert [size] == num_elements


def test_the_longest_length_is_the_last_that_int32_can_count():
    """One more would be negative."""
    longest = 2 ** (fragments.NUM_LENGTHS - 1)

    assert longest <= np.iinfo(np.int32).max < 2 * longest


def rows(count, worker, width):
    values = np.arange(count * (width or 1), dtype=np.float32) + 100 * (worker + 1)
    return values if width is None else values.reshape(count, width)


def join(execute, joining, counts, shape, widths, num_replicas=1):
    nodes, outputs, arguments = [], [], {}
    for worker, cross_worker in enumerate(joining):
        uneven = UnevenRows(cross_worker)
        for index, width in enumerate(widths):
            arg = f"x_{worker}_{index}"
            arguments[arg] = rows(counts[worker], worker, width)
            full = tf.TensorShape([shape]).concatenate([] if width is None else [width])
            ref = uneven.gather(
                f"w{worker}_{index}", arg, tf.float32, full, num_replicas, CPU[worker]
            )
            outputs.append((ref, tf.float32))
        nodes += cross_worker.nodes
    flat = execute(nodes, arguments, outputs)
    size = len(widths)
    return [flat[w * size : (w + 1) * size] for w in range(len(joining))], nodes


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "counts",
    [(2, 3), (3, 2), (0, 2), (2, 0), (0, 0), (4, 4), (1, 0, 5), (2, 3, 1)],
    ids=str,
)
@pytest.mark.parametrize("width", [None, 2])
def test_rows_are_joined_by_worker_without_padding(execute, workers, counts, width):
    """The worker with most rows may be any; some or all may have none."""
    found, _ = join(execute, workers(len(counts)), counts, None, [width])

    expected = np.concatenate([rows(n, w, width) for w, n in enumerate(counts)])
    for (result,) in found:
        np.testing.assert_array_equal(expected, result)


def test_workers_count_rows_once_per_call(execute, workers):
    found, nodes = join(execute, workers(2), (1, 3), None, [None, 2])

    for index, width in enumerate([None, 2]):
        expected = np.concatenate([rows(1, 0, width), rows(3, 1, width)])
        for result in found:
            np.testing.assert_array_equal(expected, result[index])
    gathers = [node for node in nodes if node.op == "CollectiveGatherV2"]
    assert 2 * (1 + 2) == len(gathers)


def test_rows_of_static_number_are_gathered_as_they_are(execute, workers):
    """Two replicas of two rows each on both workers; nobody counts."""
    found, nodes = join(execute, workers(2), (4, 4), 2, [3], num_replicas=2)

    expected = np.concatenate([rows(4, 0, 3), rows(4, 1, 3)])
    for (result,) in found:
        np.testing.assert_array_equal(expected, result)
    assert 2 == sum(node.op == "CollectiveGatherV2" for node in nodes)
    assert not any(node.op in ("Pad", "Max") for node in nodes)


@pytest.mark.parametrize(("shape", "joined"), [([0, 3], (0, 3)), ([2, 0], (8, 0))])
def test_rows_without_elements_are_known_without_asking(workers, shape, joined):
    """Two workers of two replicas: nothing is sent, and the number of rows is right."""
    cross_worker, _ = workers(2)

    UnevenRows(cross_worker).gather(
        "n", "x", tf.float32, tf.TensorShape(shape), 2, CPU[0]
    )

    assert ["Const"] == [node.op for node in cross_worker.nodes]
    assert joined == tf.make_ndarray(cross_worker.nodes[0].attr["value"].tensor).shape


def test_rows_of_unknown_rank_are_refused(workers):
    (cross_worker,) = workers(1)

    with pytest.raises(
        CollectiveTypeError,
        match=r"float32 rows of unknown rank cannot be sent between",
    ):
        UnevenRows(cross_worker).gather(
            "n", "x", tf.float32, tf.TensorShape(None), 1, CPU[0]
        )
