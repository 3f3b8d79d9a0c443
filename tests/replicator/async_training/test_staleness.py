"""Staleness: what the update counts of all servers add up to."""

import pytest

from replicator.async_training.staleness import summarize


def test_update_counts_of_all_servers_are_added():
    """The mean weighs each staleness with its updates."""
    found = summarize([[3, 1, 0, 0], [1, 0, 0, 2]])

    assert 7 == found.num_updates
    assert {0: 4, 1: 1, 3: 2} == found.histogram
    assert pytest.approx((1 + 2 * 3) / 7) == found.mean
    assert (3, 3) == (found.max, found.limit)
    assert str(found).endswith("max 3; updates by staleness: 0: 4, 1: 1, 3: 2")


def test_before_the_first_update_there_is_no_staleness():
    """No division by zero, and still a message."""
    found = summarize([[0, 0], [0, 0]])

    assert (0, {}, 0.0, 0, 1) == (
        found.num_updates, found.histogram, found.mean, found.max, found.limit
    )  # fmt: skip
    assert "0 updates, staleness mean 0.00, max 0; updates by staleness: none" == str(
        found
    )


def test_servers_with_different_update_counts_are_no_summary():
    """They would be cut off to the shortest."""
    with pytest.raises(ValueError, match="zip"):
        summarize([[1, 2], [1]])
