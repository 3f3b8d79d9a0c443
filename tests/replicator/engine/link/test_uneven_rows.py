"""Uneven rows: workers with different numbers of rows, joined by worker id."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.link.uneven_rows import UnevenRows
from replicator.errors import CollectiveTypeError

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


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
