"""A tree of sums: samples leaves by weight, in time proportional to its depth."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Non-negative weights of leaves, and the sums above them.

    Sums are recomputed from their two parts, never incremented, so that they do not
    drift.
    """

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = num_leaves
        self._depth = max(num_leaves - 1, 1).bit_length()
        self._first = 1 << self._depth
        # Node k has the parts 2k and 2k + 1; 1 is the root.
        self._sums = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[1])

    def weights(self, leaves: np.ndarray) -> np.ndarray:
        """Returns weights of leaves, float64 [n]."""
        return self._sums[self._first + leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets weights of leaves, int [n]; for duplicates, the last one is used."""
        nodes = self._first + np.asarray(leaves)
        self._sums[nodes] = weights
        for _ in range(self._depth):
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Returns the leaves that cover positions in [0, total), int64 [n].

        Leaf k covers the interval from the sum of the weights before it to the sum that
        includes its own.
        """
        left_over = np.array(positions, np.float64)
        nodes = np.ones(len(left_over), np.int64)
        for _ in range(self._depth):
            nodes *= 2
            left = self._sums[nodes]
            # A part of zero weight is never entered, not even through rounding.
            goes_right = (left_over >= left) & (self._sums[nodes + 1] > 0)
            left_over -= np.where(goes_right, left, 0.0)
            nodes += goes_right
        return np.minimum(nodes - self._first, self._num_leaves - 1)
