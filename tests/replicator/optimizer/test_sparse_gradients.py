"""Sparse gradients: rows of all replicas are joined, and their gradient goes back."""

import numpy as np
import tensorflow as tf

import replicator
from replicator import PerReplica


def test_slices_of_different_lengths_are_joined(repl_once):
    """Rows of all replicas in their order, also where one has none."""
    num_replicas = repl_once.num_replicas
    values = np.arange(3.0 * num_replicas).reshape(num_replicas, 3, 1)
    indices = np.arange(3 * num_replicas).reshape(num_replicas, 3)

    def step(batch):
        rows, places, count = batch
        slices = tf.IndexedSlices(rows[:count], places[:count], tf.constant([99, 1]))
        merged = [replicator.all_reduce(slices, op) for op in ("sum", "mean")]
        return [(one.values, one.indices) for one in merged]

    for pair in ((2, 1), (0, 3), (0, 0), (1, 1)):
        counts = (pair * 2)[:num_replicas]
        found = repl_once.run(
            step,
            (
                PerReplica([tf.constant(v) for v in values]),
                PerReplica([tf.constant(i) for i in indices]),
                PerReplica([tf.constant(c) for c in counts]),
            ),
        )

        want = np.concatenate([v[:c] for v, c in zip(values, counts, strict=True)])
        places = np.concatenate([i[:c] for i, c in zip(indices, counts, strict=True)])
        for share, (all_values, all_places) in zip(
            (1, num_replicas), found, strict=True
        ):
            assert num_replicas == len(all_values) == len(all_places)
            for got_values, got_places in zip(all_values, all_places, strict=True):
                np.testing.assert_allclose(got_values, want / share)
                np.testing.assert_array_equal(got_places, places)


def test_the_gradient_of_joined_slices_goes_back_to_its_rows(in_graph):
    """Each replica gets the rows that it gave, summed over replicas, twice over."""
    values = [np.array([[1.0], [2.0], [3.0]]), np.array([[4.0], [5.0], [6.0]])]

    def step(batch):
        rows, count = batch
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as tape:
                tape.watch(rows)
                slices = tf.IndexedSlices(rows[:count], tf.range(count))
                merged = replicator.all_sum(slices).values
                loss = tf.reduce_sum(merged**3)
            first = tape.gradient(loss, rows)
            penalty = tf.reduce_sum(first**2)
        return first, outer.gradient(penalty, rows)

    first, second = in_graph.run(
        step,
        (
            PerReplica([tf.constant(v) for v in values]),
            PerReplica([tf.constant(1), tf.constant(2)]),
        ),
    )

    for replica, count in enumerate((1, 2)):
        rows = values[replica].copy()
        rows[count:] = 0.0
        # Both replicas have the loss, so its gradient comes twice: g = 2 * 3 x^2.
        np.testing.assert_allclose(first[replica], 6 * rows**2)
        np.testing.assert_allclose(second[replica], 2 * 6 * rows**2 * 12 * rows)
