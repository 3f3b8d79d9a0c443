"""Any size: what has no static shape is sent as a vector of a power of two."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import any_size

CPU = "/job:localhost/replica:0/task:0/device:CPU:1"
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
    sent = any_size.pad(emit, "sent", "x", tf_dtype, CPU)
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
    longest = 2 ** (any_size.NUM_LENGTHS - 1)

    assert longest <= np.iinfo(np.int32).max < 2 * longest
