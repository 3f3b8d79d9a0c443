"""Buckets: which small tensors are sent together."""

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from replicator.collectives import buckets


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4], [(0,)]),
        ([4, 4], [(0, 1)]),
        ([4, 6], [(0, 1)]),  # exactly full
        ([4, 7], [(0,), (1,)]),
        ([4, 4, 4, 4], [(0, 1), (2, 3)]),
        ([4, 40, 4], [(1,), (0, 2)]),  # too large to join, and not too late
        ([4, 0, 4], [(1,), (0, 2)]),  # of unknown size
    ],
)
def test_a_bucket_is_full_at_its_limit(sizes, expected):
    keys = ["a"] * len(sizes)

    assert buckets.fill(keys, sizes, limit=10, alone_from=20) == expected


def test_buckets_of_several_keys_go_when_their_last_tensor_came():
    """What is complete first is sent first."""
    keys, sizes = ["a", "b", "a", "b", "c"], [1, 1, 1, 1, 1]

    assert [(0, 2), (1, 3), (4,)] == buckets.fill(keys, sizes, limit=10)
    assert [(1,), (0, 2), (3,), (4,)] == buckets.fill(keys, [1, 2, 1, 2, 1], limit=2)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=20))
def test_every_tensor_is_in_one_bucket_of_its_key_within_the_limit(tensors):
    """A single tensor may be larger than the limit; several together are not."""
    keys, sizes = [key for key, _ in tensors], [size for _, size in tensors]
    found = buckets.fill(keys, sizes, limit=25, alone_from=20)

    assert sorted(p for bucket in found for p in bucket) == list(range(len(tensors)))
    for bucket in found:
        assert len({keys[p] for p in bucket}) == 1
        assert list(bucket) == sorted(bucket)
        assert len(bucket) == 1 or sum(sizes[p] for p in bucket) <= 25
        assert len(bucket) == 1 or all(0 < sizes[p] < 20 for p in bucket)


def test_positions_are_grouped_by_type_in_the_order_of_the_first():
    """So that packing is the same on every worker."""
    tensors = [tf.zeros([], t) for t in (tf.int32, tf.float32, tf.int32)]

    assert {tf.int32: [0, 2], tf.float32: [1]} == buckets.positions_by_dtype(tensors)
    assert [tf.int32, tf.float32] == list(buckets.positions_by_dtype(tensors))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4], [(0,)]),
        ([4, 4, 4, 4], [(0, 1), (2,), (3,)]),  # half of 16, of 8, then the least
        ([1] * 16, [tuple(range(8)), (8, 9, 10, 11), (12, 13), (14, 15)]),
        ([1, 9, 1], [(0, 1), (2,)]),  # fewer than the least are not sent alone
        ([3, 9, 1], [(0,), (1,), (2,)]),
        ([1, 40, 1], [(1,), (0, 2)]),  # too large to join, and not too late
        ([1, 0, 1], [(1,), (0, 2)]),  # of unknown size
        ([10] * 6, [(0, 1), (2, 3), (4,), (5,)]),
    ],
)
def test_buckets_become_smaller_towards_the_end(sizes, expected):
    """Each is full at half of what is left, between 2 and 20."""
    keys = ["a"] * len(sizes)

    assert expected == buckets.fill_towards_end(keys, sizes, least=2, most=20)


@given(
    sizes=st.lists(st.integers(0, 60), max_size=40),
    keys=st.lists(st.sampled_from("ab"), min_size=40, max_size=40),
)
def test_every_tensor_is_in_one_bucket_of_its_key_in_order(sizes, keys):
    """A bucket is closed where it is full, so none has more than the most and a bit."""
    keys = keys[: len(sizes)]

    found = buckets.fill_towards_end(keys, sizes, least=5, most=30)

    assert sorted(sum(found, ())) == list(range(len(sizes)))
    assert [max(bucket) for bucket in found] == sorted(max(b) for b in found)
    for bucket in found:
        assert 1 == len({keys[p] for p in bucket})
        assert list(bucket) == sorted(bucket)
        if len(bucket) > 1:
            assert sum(sizes[p] for p in bucket) < 30 + 5
            assert all(0 < sizes[p] < 30 for p in bucket)
