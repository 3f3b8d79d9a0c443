"""A step over sparse rows, which the test process repeats on replicas of its own."""

import numpy as np
import tensorflow as tf
from tiny_models import share

import replicator

# Rows of each replica's slices, in turn: also none at all, on one and on all of them.
ROW_COUNTS = ((3, 1, 0, 2), (0, 0, 0, 0), (0, 3, 3, 3), (2, 2, 2, 2))


def joined_rows(repl):
    """Slices with different numbers of rows, as one replica gets them."""
    rng = np.random.default_rng(4)
    values = rng.normal(size=(4, 3, 2)).astype(np.float32)
    indices = rng.integers(0, 5, size=(4, 3))

    def step(batch):
        rows, places, count = batch
        slices = tf.IndexedSlices(rows[:count], places[:count], tf.constant([5, 2]))
        merged = replicator.all_mean(slices)
        return merged.values, merged.indices

    found = []
    for counts in ROW_COUNTS:
        arguments = (values, indices, np.array(counts))
        outputs = repl.run(step, tuple(share(repl, a) for a in arguments))
        found.append([output[0].numpy().tolist() for output in outputs])
    return found
