"""The sum tree against the cumulative sum."""

import numpy as np

from workloads.d4pg.replay.sum_tree import SumTree


def test_a_tree_finds_the_leaf_that_covers_a_position():
    """Against the cumulative sum, with leaves of weight zero at its borders."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 64, 100):
        tree = SumTree(size)
        weights = np.where(rng.uniform(size=size) < 0.4, 0.0, rng.uniform(size=size))
        weights[size // 2] = 1.0
        tree.set(np.arange(size), weights)
        positions = rng.uniform(0, tree.total, 500)
        expected = np.searchsorted(weights.cumsum(), positions, side="right")

        np.testing.assert_array_equal(expected, tree.find(positions))
        top = tree.find(np.array([0.0, tree.total, np.nextafter(tree.total, 9e9)]))
        assert (weights[top] > 0).all()


def test_a_tree_does_not_drift():
    """After a hundred thousand changes the root is still the sum of the leaves."""
    rng = np.random.default_rng(0)
    tree = SumTree(1000)
    for _ in range(200):
        tree.set(rng.integers(1000, size=500), rng.gamma(0.1, 1e6, 500))
    tree.set(np.arange(1000), 0.0)

    assert 0.0 == tree.total
