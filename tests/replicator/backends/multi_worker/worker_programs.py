"""Steps whose results the test process repeats on the replicas of one process."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
import tiny_models
from tiny_models import share

import replicator

NUM_STEPS = 8
# Rows of each replica's slices, in turn: also none at all, on one and on all of them.
ROW_COUNTS = ((3, 1, 0, 2), (0, 0, 0, 0), (0, 3, 3, 3), (2, 2, 2, 2))


def accumulated(repl):
    """Gradients of two steps in one update, with a loss scale."""
    return tiny_models.trajectory(
        repl,
        "embedding",
        "adam",
        num_steps=NUM_STEPS,
        accumulation_steps=2,
        loss_scale="dynamic",
    )


def convolution_training(repl, num_steps_per_run=1):
    """With cross-replica batch norm."""
    return tiny_models.trajectory(
        repl,
        "convolution",
        "momentum",
        num_steps=NUM_STEPS,
        num_steps_per_run=num_steps_per_run,
    )


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


def sparse_training(repl):
    """Adagrad on a table, with shared rows and different numbers of them."""
    rng = np.random.default_rng(5)
    batches = rng.integers(0, 4, size=(3, 4, 6))
    counts = rng.integers(0, 7, size=(3, 4))
    with repl.context():
        table = tf.Variable(np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3))
        optimizer = repl.wrap_optimizer(keras.optimizers.Adagrad(0.1))

    def step(batch):
        ids, count = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.gather(table, ids[:count])))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for ids, count in zip(batches, counts, strict=True):
        repl.run(step, (share(repl, ids), share(repl, count)))
    return table.numpy().tolist()


def derivatives(repl):
    """A second derivative, a Jacobian, a vectorized map and a tangent."""
    values = np.random.default_rng(6).normal(size=(4, 3))

    def step(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(replicator.all_mean(x**2) ** 2)
            slope = inner.gradient(y, x)
            penalty = tf.reduce_sum(slope**2)
            joined = replicator.all_sum(x**3)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            tangent = forward.jvp(replicator.all_max(x * x))
        return (
            outer.gradient(penalty, x),
            outer.jacobian(joined, x),
            tf.vectorized_map(lambda e: replicator.all_gather(e) * e, x),
            tangent,
        )

    outputs = repl.run(step, share(repl, values))
    first = repl.first_replica_id
    return {
        str(first + place): [output[place].numpy().tolist() for output in outputs]
        for place in range(repl.num_local_replicas)
    }


CASES = {
    "accumulated": accumulated,
    "joined rows": joined_rows,
    "sparse training": sparse_training,
    "derivatives": derivatives,
}
