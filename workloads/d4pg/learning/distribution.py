"""Categorical distributions of returns (Bellemare, Dabney & Munos 2017), pure.

A distribution assigns a probability to each of N evenly spaced returns, the atoms. A
Bellman backup moves the atoms, and their probabilities are projected back onto the
original ones: equation 7.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_ROW, _MATRIX = 1, 2  # ranks
_FEWEST_ATOMS = 2
RIM = 1e-3
"""How far beyond the last atom a return does not count as clipped, in spacings."""


def make_atoms(low: float, high: float, num_atoms: int) -> np.ndarray:
    """Returns evenly spaced returns, [num_atoms] float32."""
    if num_atoms < _FEWEST_ATOMS or not low < high:
        raise ValueError(
            f"make_atoms got {num_atoms} atoms from {low} to {high}: it needs 2 atoms "
            "or more and a low end below the high one; the Control Suite paper has 101 "
            "from -150 to 150"
        )
    return np.linspace(low, high, num_atoms, dtype=np.float32)


def expectation(logits: tf.Tensor, atoms: tf.Tensor) -> tf.Tensor:
    """Returns the mean of each distribution."""
    _check("expectation", "logits", logits, _MATRIX)
    _check("expectation", "atoms", atoms, _ROW)
    _check_length("expectation", logits, atoms)
    return tf.linalg.matvec(tf.nn.softmax(logits), atoms)


def backup(
    reward: tf.Tensor,
    discount: tf.Tensor,
    next_probabilities: tf.Tensor,
    atoms: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distribution of reward + discount * next return, on the atoms.

    Each backed-up atom is clipped to the range of the atoms, and its probability is
    distributed linearly to its two neighbours (equation 7):

        target_i = sum_j [1 - |clip(reward + discount z_j) - z_i| / dz]_0^1 p_j
    """
    _check("backup", "reward", reward, _ROW)
    _check("backup", "discount", discount, _ROW)
    _check("backup", "next_probabilities", next_probabilities, _MATRIX)
    _check("backup", "atoms", atoms, _ROW)
    _check_length("backup", next_probabilities, atoms)
    num_atoms = atoms.shape[0]
    spacing = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    returns = reward[:, None] + discount[:, None] * atoms[None, :]
    # In units of the spacing, from the lowest atom: 0 to num_atoms - 1.
    places = (returns - atoms[0]) / spacing
    last = tf.cast(num_atoms - 1, tf.float32)
    # Rounding can put an atom at the end slightly outside; that is not clipping.
    is_outside = (places < -RIM) | (places > last + RIM)
    clipped = tf.reduce_sum(
        tf.where(is_outside, next_probabilities, tf.zeros_like(places)), axis=1
    )
    places = tf.clip_by_value(places, 0.0, last)
    below = tf.minimum(tf.floor(places), last - 1.0)
    to_above = places - below
    # A scatter over 2 N entries: the kernel of equation 7 itself has N^2. GPUs leave
    # arithmetic in int32 to the host, for which every step would wait.
    rows = tf.range(tf.shape(places, tf.int64)[0])[:, None] * num_atoms
    index = rows + tf.cast(below, tf.int64)
    target = tf.math.unsorted_segment_sum(
        tf.stack(
            [next_probabilities * (1.0 - to_above), next_probabilities * to_above]
        ),
        tf.stack([index, index + 1]),
        tf.size(places),
    )
    return tf.reshape(target, tf.shape(places)), clipped


def _check(function: str, name: str, value: tf.Tensor, rank: int) -> None:
    if value.shape.rank != rank or value.dtype != tf.float32:
        shape = {_ROW: "of rank 1", _MATRIX: "of shape [examples, num_atoms]"}[rank]
        raise ValueError(
            f"{function} needs {name} {shape} and type float32, but got {value.shape} "
            f"and {value.dtype.name!r}; reshape or cast it first"
        )


def _check_length(function: str, matrix: tf.Tensor, atoms: tf.Tensor) -> None:
    if matrix.shape[1] != atoms.shape[0] or atoms.shape[0] < _FEWEST_ATOMS:
        raise ValueError(
            f"{function} got distributions over {matrix.shape[1]} atoms and "
            f"{atoms.shape[0]} atoms: it needs as many of both, at least 2"
        )
