"""Sparse gradients: rows that replicas share, and different numbers of rows."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica, create

NUM_ROWS, NUM_COLUMNS = 6, 3
# Every replica names row 0 several times; the first has more rows than the second.
IDS = ([0, 0, 1, 4, 0, 1], [0, 4, 0, -1, -1, -1])
COUNTS = (6, 3)
NUM_STEPS = 3
PLACEMENTS = {
    "shared": {},
    "copies": {"devices": ["CPU:0", "CPU:1"], "variable_placement": "mirrored"},
}
NAMES = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind not in (keras.optimizers.Optimizer, keras.optimizers.MultiOptimizer)
)


def _optimizer(name):
    if name == "LossScaleOptimizer":
        return keras.optimizers.LossScaleOptimizer(_optimizer("Adam"))
    return getattr(keras.optimizers, name)(learning_rate=0.02)


def _table(name):
    start = np.random.default_rng(len(name)).normal(size=(NUM_ROWS, NUM_COLUMNS))
    return keras.Variable(start.astype(np.float32), name=f"{name}_table")


def _gradient(table, ids):
    """The gradient of a loss that weighs the places of the batch differently."""
    with tf.GradientTape() as tape:
        rows = tf.gather(table.value, ids)
        weights = tf.cast(tf.range(1, tf.size(ids) + 1), tf.float32)
        loss = tf.reduce_sum(weights[:, tf.newaxis] * tf.sin(rows))
    return tape.gradient(loss, table.value)


def _alone(name):
    """One device with the batches of both replicas, and dense gradients."""
    table, optimizer = _table(name), _optimizer(name)
    for _ in range(NUM_STEPS):
        parts = [
            tf.convert_to_tensor(_gradient(table, tf.constant(ids[:count])))
            for ids, count in zip(IDS, COUNTS, strict=True)
        ]
        optimizer.apply([tf.add_n(parts) / len(parts)], [table])
    return table.numpy()


def _batch():
    return (
        PerReplica([tf.constant(ids) for ids in IDS]),
        PerReplica([tf.constant(count) for count in COUNTS]),
    )


def _repl(placement):
    return create("in_graph", num_replicas=2, **PLACEMENTS[placement])


@pytest.mark.parametrize(
    ("placement", "options"),
    [
        pytest.param("shared", {}, marks=pytest.mark.full),
        pytest.param("copies", {}, marks=pytest.mark.full),
        ("copies", {"sharded_update": True}),
    ],
)
def test_rows_that_replicas_share_update_as_on_one_device(placement, options):
    """Every optimizer of Keras, with different numbers of rows on the replicas.

    The full run has one copy, and copies that all replicas update, as well. Conformance
    cases have one optimizer for each, and dense gradients are tried with all of them.
    """
    repl = _repl(placement)
    with repl.context():
        tables = {name: _table(name) for name in NAMES}
        wrapped = {
            name: repl.wrap_optimizer(_optimizer(name), **options) for name in NAMES
        }

    def step(batch):
        ids, count = batch
        for name in NAMES:
            gradient = _gradient(tables[name], ids[:count])
            assert isinstance(gradient, tf.IndexedSlices)
            wrapped[name].apply_gradients([(gradient, tables[name])])

    for _ in range(NUM_STEPS):
        repl.run(step, _batch())

    repl.assert_in_sync()
    wrong = {}
    for name in NAMES:
        error = np.abs(_alone(name) - tables[name].numpy()).max()
        if not error <= 1e-5:
            wrong[name] = error
    assert {} == wrong


def test_one_replica_adds_up_its_own_duplicates():
    """``single`` too, or it would be no baseline; Keras alone squares each row."""
    repl = create("single")
    with repl.context():
        table = _table("Adagrad")
        optimizer = repl.wrap_optimizer(_optimizer("Adagrad"))
    dense, dense_optimizer = _table("Adagrad"), _optimizer("Adagrad")
    keras_alone, keras_optimizer = _table("Adagrad"), _optimizer("Adagrad")
    ids = tf.constant(IDS[0])

    def step():
        optimizer.apply_gradients([(_gradient(table, ids), table)])

    repl.run(step)
    dense_optimizer.apply([tf.convert_to_tensor(_gradient(dense, ids))], [dense])
    keras_optimizer.apply([_gradient(keras_alone, ids)], [keras_alone])

    np.testing.assert_allclose(table.numpy(), dense.numpy(), atol=1e-6)
    assert np.abs(keras_alone.numpy() - dense.numpy()).max() > 1e-3


def test_a_row_is_updated_once(in_graph):
    """Adagrad, one step: 0.900 as on one device, not 0.881 of two halves."""
    with in_graph.context():
        table = tf.Variable([[1.0]])
        optimizer = in_graph.wrap_optimizer(
            keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=0.0)
        )

    def step(gradient):
        slices = tf.IndexedSlices(gradient, tf.constant([0]), tf.constant([1, 1]))
        optimizer.apply_gradients([(slices, table)])

    in_graph.run(step, PerReplica([tf.constant([[1.0]]), tf.constant([[3.0]])]))

    np.testing.assert_allclose(table.numpy(), [[0.9]], rtol=1e-6)


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


def test_split_batches_with_a_remainder_train_an_embedding(in_graph):
    """Seven examples in global batches of four: the last one is not even."""
    examples = np.array([0, 1, 0, 2, 0, 3, 0])
    with in_graph.context():
        table = tf.Variable(np.ones((4, 1), np.float32))
        optimizer = in_graph.wrap_optimizer(keras.optimizers.Adagrad(0.1))

    def input_fn(ctx):
        data = tf.data.Dataset.from_tensor_slices(examples)
        return replicator.split_global_batches(data, ctx, 4)

    def step(ids):
        with tf.GradientTape() as tape:
            per_example = tf.gather(table, ids)[:, 0]
            loss = replicator.mean_over_examples(per_example)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    alone = tf.Variable(np.ones((4, 1), np.float32))
    alone_optimizer = keras.optimizers.Adagrad(0.1)
    for batch in (examples[:4], examples[4:]):
        dense = np.bincount(batch, minlength=4)[:, np.newaxis] / len(batch)
        alone_optimizer.apply([tf.constant(dense, tf.float32)], [alone])

    inputs = in_graph.make_input_iterator(input_fn)
    for _ in range(2):
        in_graph.run(step, inputs)

    np.testing.assert_allclose(table.numpy(), alone.numpy(), rtol=1e-6)
