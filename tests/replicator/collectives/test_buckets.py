"""Buckets: which small tensors are sent together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.collectives import kind as buckets


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4, 6], [(0, 1)]),  # exactly full
        ([4, 7], [(0,), (1,)]),
        ([4, 40, 4], [(1,), (0, 2)]),  # too large to join, and not too late
        ([4, 0, 4], [(1,), (0, 2)]),  # of unknown size
    ],
)
def test_a_bucket_is_full_at_its_limit(sizes, expected):
    keys = ["a"] * len(sizes)

    assert buckets.fill(keys, sizes, limit=10, alone_from=20) == expected


def test_buckets_of_several_keys_go_when_their_last_tensor_came():
    """What is complete first is sent first."""
    keys = ["a", "b", "a", "b", "c"]

    assert [(0, 2), (1, 3), (4,)] == buckets.fill(keys, [1] * 5, limit=10)
    assert [(1,), (0, 2), (3,), (4,)] == buckets.fill(keys, [1, 2, 1, 2, 1], limit=2)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4, 4, 4, 4], [(0, 1), (2,), (3,)]),  # half of 16, of 8, then the least
        ([1] * 16, [tuple(range(8)), (8, 9, 10, 11), (12, 13), (14, 15)]),
        ([1, 9, 1], [(0, 1), (2,)]),  # fewer than the least are not sent alone
        ([3, 9, 1], [(0,), (1,), (2,)]),
        ([1, 40, 1], [(1,), (0, 2)]),  # too large to join, and not too late
        ([10] * 6, [(0, 1), (2, 3), (4,), (5,)]),
    ],
)
def test_buckets_become_smaller_towards_the_end(sizes, expected):
    """Each is full at half of what is left, between 2 and 20."""
    keys = ["a"] * len(sizes)

    assert expected == buckets.fill_towards_end(keys, sizes, least=2, most=20)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=40))
def test_every_tensor_is_in_one_bucket_of_its_key_in_order(tensors):
    """Small ones are joined up to the limit; a full bucket has a bit more than most."""
    keys, sizes = [key for key, _ in tensors], [size for _, size in tensors]
    limited = buckets.fill(keys, sizes, limit=25, alone_from=20)
    shrinking = buckets.fill_towards_end(keys, sizes, least=5, most=30)

    for found, alone_from, most in ((limited, 20, 25), (shrinking, 30, 34)):
        assert sorted(sum(found, ())) == list(range(len(sizes)))
        for bucket in found:
            assert 1 == len({keys[p] for p in bucket})
            assert list(bucket) == sorted(bucket)
            if len(bucket) > 1:
                assert sum(sizes[p] for p in bucket) <= most
                assert all(0 < sizes[p] < alone_from for p in bucket)
    assert [max(bucket) for bucket in shrinking] == sorted(map(max, shrinking))
