"""Any size: what has no static shape is sent as a vector of a power of two."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import any_size

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def padded(execute, value):
    """The vector that is sent, its key offset, and the number of elements."""
    emit = Emitter()
    dtype = tf.as_dtype(np.asarray(value).dtype)
    sent = any_size.pad(emit, "sent", "x", dtype, CPU[1])
    outputs = [
        (sent.value, dtype), (sent.key_offset, tf.int32), (sent.num_elements, tf.int32)
    ]  # fmt: skip
    return execute(emit.nodes, {"x": value}, outputs)


@pytest.mark.parametrize(
    ("size", "length", "offset"),
    [
        (0, 1, 0),
        (1, 1, 0),
        (2, 2, 1),
        (3, 4, 2),
        (4, 4, 2),
        (5, 8, 3),
        (7, 8, 3),
        (8, 8, 3),
        (9, 16, 4),
        (1024, 1024, 10),
        (1025, 2048, 11),
    ],
)
def test_a_tensor_is_padded_to_the_next_power_of_two(execute, size, length, offset):
    """The offset is the exponent; no tensor without elements is sent."""
    value = np.arange(size, dtype=np.float32) + 1

    vector, key_offset, num_elements = padded(execute, value)

    expected = np.concatenate([value, np.zeros(length - size, np.float32)])
    np.testing.assert_array_equal(expected, vector)
    assert offset == key_offset
    assert [size] == num_elements


@pytest.mark.parametrize(
    "value",
    [
        np.float64(2.5),
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.zeros([3, 0, 2], np.float16),
    ],
    ids=["scalar", "matrix", "no elements"],
)
def test_elements_travel_in_their_order_and_type(execute, value):
    """Of any rank."""
    vector, _, num_elements = padded(execute, value)

    assert value.dtype == vector.dtype
    assert [value.size] == num_elements
    np.testing.assert_array_equal(np.ravel(value), vector[: value.size])


def test_the_longest_length_is_the_last_that_int32_can_count():
    """One more would be negative."""
    longest = 2 ** (any_size.NUM_LENGTHS - 1)

    assert longest <= np.iinfo(np.int32).max < 2 * longest


@pytest.mark.parametrize("shapes", [[(3,), (3,)], [(2, 3), (5, 2), (0, 4)]])
def test_values_of_unknown_shape_are_summed_time_and_again(execute, workers, shapes):
    """Equal shapes on all workers, other ones each time, zero rows among them."""
    for shape in shapes:
        nodes, outputs, arguments = [], [], {}
        for worker, cross_worker in enumerate(workers(2)):
            arguments[f"x_{worker}"] = np.full(shape, worker + 1, np.float32)
            unknown = tf.TensorShape([None] * len(shape))
            ref = cross_worker.reduce(
                f"w{worker}", f"x_{worker}", "sum", tf.float32, unknown, CPU[worker]
            )
            nodes += cross_worker.nodes
            outputs.append((ref, tf.float32))

        for found in execute(nodes, arguments, outputs):
            np.testing.assert_array_equal(np.full(shape, 3, np.float32), found)
