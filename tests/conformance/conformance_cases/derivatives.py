"""Derivatives of every order, vectorized loops, and rows that replicas share."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, on_every, share

import replicator

NUM_ROWS = 4


def _operands(num_replicas):
    return np.linspace(-1.0, 1.5, 3 * num_replicas).reshape(num_replicas, 3)


def _derivatives(topology):
    """By hand: t = sum(y^2) with y = all_sum(x); h = |dt/dx|^2 = |2 R y|^2.

    Its derivative: 2 * 2 R y, times 2 R, summed over the replicas: 8 R^3 y.
    """
    n, xs = topology.num_replicas, _operands(topology.num_replicas)
    return {
        "second": on_every(topology, 8 * n**3 * xs.sum(axis=0)),
        "tangents": {
            "all_mean": on_every(topology, (2 * xs).mean(axis=0)),
            "all_gather": on_every(topology, 2 * xs),
            "permute": replicator.PerReplica([0 * xs[0], *(2 * xs[:-1])]),
        },
    }


@case("collectives", "higher_derivatives", reference=_derivatives)
def higher_derivatives(repl):
    """The gradient of a gradient, and tangents in forward mode, are of all replicas."""
    pairs = [(r, r + 1) for r in range(repl.num_replicas - 1)]

    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                target = tf.reduce_sum(replicator.all_sum(x) ** 2)
            penalty = tf.reduce_sum(inner.gradient(target, x) ** 2)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            results = {
                "all_mean": replicator.all_mean(x * x),
                "all_gather": replicator.all_gather(x * x),
                "permute": replicator.permute(x * x, pairs),
            }
        return {
            "second": outer.gradient(penalty, x),
            "tangents": {name: forward.jvp(y) for name, y in results.items()},
        }

    return repl.run(step, share(repl, _operands(repl.num_replicas)))


def _vectorized(topology):
    xs = _operands(topology.num_replicas)
    n = topology.num_replicas
    return {
        "map": on_every(topology, xs.max(axis=0)),
        "jacobian": replicator.PerReplica([np.diag(2 * n * x) for x in xs]),
    }


@case("collectives", "vectorized_collectives", reference=_vectorized)
def vectorized_loops(repl):
    """tf.vectorized_map and tape.jacobian communicate."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joined = replicator.all_sum(x * x)
        return {
            "map": tf.vectorized_map(replicator.all_max, x),
            "jacobian": tape.jacobian(joined, x),
        }

    return repl.run(step, share(repl, _operands(repl.num_replicas)))


def _train_table(repl, counts):
    """Adagrad, which squares gradients, on rows that several replicas touch."""
    ids = np.array([[0, 1, 0], [0, 2, 1], [0, 0, 3], [2, 0, 1]])[: repl.num_replicas]
    with repl.context():
        table = tf.Variable(np.linspace(-1.0, 1.0, NUM_ROWS, dtype=np.float32)[:, None])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adagrad(0.1))

    def step(batch):
        rows, count = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.gather(table, rows[:count])))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for _ in range(2):
        repl.run(step, (share(repl, ids), share(repl, np.array(counts))))
    return replicator.PerReplica([table.numpy()] * repl.num_local_replicas)


def _trained_table(counts):
    def reference(topology):
        ids = np.array([[0, 1, 0], [0, 2, 1], [0, 0, 3], [2, 0, 1]])
        n = topology.num_replicas
        table = np.linspace(-1.0, 1.0, NUM_ROWS)[:, None]
        accumulator = np.full_like(table, 0.1)
        for _ in range(2):
            gradient = np.zeros_like(table)
            for rows, count in zip(ids[:n], counts[:n], strict=True):
                np.add.at(gradient, rows[:count], np.cos(table[rows[:count]]) / n)
            accumulator += gradient**2
            table = table - 0.1 * gradient / np.sqrt(accumulator + 1e-7)
        return on_every(topology, np.float32(table))

    return reference


_EVEN, _UNEVEN = (3, 3, 3, 3), (3, 1, 0, 2)


@case("synchronous_training", "shared_rows", reference=_trained_table(_EVEN))
def rows_that_replicas_share(repl):
    """They are summed before a nonlinear update, as in the dense gradient."""
    return _train_table(repl, _EVEN[: repl.num_replicas])


@case(
    "synchronous_training",
    "shared_rows",
    "uneven_rows",
    reference=_trained_table(_UNEVEN),
)
def rows_that_are_not_equally_many(repl):
    """Replicas touch 3, 1, 0 and 2 rows."""
    return _train_table(repl, _UNEVEN[: repl.num_replicas])


def _joined(topology):
    values, places = _uneven_slices(topology.num_replicas)
    dense = np.zeros((NUM_ROWS, 2), np.float32)
    for rows, indices, count in zip(values, places, _UNEVEN, strict=False):
        np.add.at(dense, indices[:count], rows[:count])
    return on_every(topology, dense)


def _uneven_slices(num_replicas):
    values = np.arange(6 * num_replicas, dtype=np.float32).reshape(num_replicas, 3, 2)
    return values, np.arange(3 * num_replicas).reshape(num_replicas, 3) % NUM_ROWS


@case("sparse_gradients", "uneven_rows", reference=_joined)
def slices_that_are_not_equally_many(repl):
    """A sum of them has the rows of all replicas."""
    values, places = _uneven_slices(repl.num_replicas)

    def step(batch):
        rows, indices, count = batch
        slices = tf.IndexedSlices(
            rows[:count], indices[:count], dense_shape=tf.constant([NUM_ROWS, 2])
        )
        return tf.convert_to_tensor(replicator.all_sum(slices))

    counts = np.array(_UNEVEN[: repl.num_replicas])
    return repl.run(
        step, (share(repl, values), share(repl, places), share(repl, counts))
    )


@case("loss_objects", reference=lambda t: on_every(t, np.float32(2.5)))
def a_keras_loss_object(repl):
    """It gives the mean over the batch of a replica, as Keras' loss functions do."""
    loss = keras.losses.MeanSquaredError()

    def step():
        return loss(tf.constant([[1.0], [2.0]]), tf.constant([[0.0], [0.0]]))

    return repl.run(step)
