"""An embedding in parts against one table."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

NUM_ROWS, NUM_COLUMNS = 11, 3
TABLE = np.random.default_rng(0).normal(size=(NUM_ROWS, NUM_COLUMNS)).astype("float32")
IDS = np.array([[0, 10, 3, 3], [7, 1, 10, 2]])


def make(num_parts):
    layer = replicator.ShardedEmbedding(NUM_ROWS, NUM_COLUMNS, num_parts=num_parts)
    for index, part in enumerate(layer.parts):
        part.assign(TABLE[index::num_parts])
    return layer


@pytest.mark.parametrize("num_parts", [1, 2, 3, 11])
def test_lookups_are_those_of_one_table(num_parts):
    """Ids of any shape and integer type, repeated ones too; none at all."""
    layer = make(num_parts)

    np.testing.assert_array_equal(layer.table(), TABLE)
    np.testing.assert_array_equal(layer(tf.constant(IDS, tf.int64)), TABLE[IDS])
    np.testing.assert_array_equal(layer(tf.constant(4)), TABLE[4])
    assert (0, NUM_COLUMNS) == layer(tf.zeros([0], tf.int32)).shape


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_on_replicas_is_that_of_one_table(repl_once, per_replica, optimizer):
    """Gradients are sparse, and the rows come out as in a plain variable."""
    repl = repl_once
    count = repl.num_replicas
    ids = per_replica(np.resize(IDS, (count, 5)))
    with repl.context():
        layer = make(3)
        table = tf.Variable(TABLE)
        of_layer, of_table = (
            repl.wrap_optimizer(keras.optimizers.get(optimizer)) for _ in range(2)
        )

    def step(rows):
        with tf.GradientTape(persistent=True) as tape:
            first = tf.reduce_sum(layer(rows) ** 2)
            second = tf.reduce_sum(tf.gather(table, rows) ** 2)
        gradients = tape.gradient(first, [part.value for part in layer.parts])
        assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
        of_layer.apply_gradients(zip(gradients, layer.parts, strict=True))
        of_table.apply_gradients([(tape.gradient(second, table), table)])

    for _ in range(3):
        repl.run(step, ids)

    assert not np.array_equal(table.numpy(), TABLE)
    np.testing.assert_allclose(layer.table(), table.numpy(), rtol=1e-5, atol=1e-6)


def test_every_shard_holds_a_row():
    with pytest.raises(ValueError, match=r"num_parts 12 must be .* is 11"):
        replicator.ShardedEmbedding(NUM_ROWS, NUM_COLUMNS, num_parts=12)


@pytest.mark.parametrize("name", ["num_rows", "num_columns", "num_parts"])
@pytest.mark.parametrize("size", [None, 2.0, 0, 10**30])
def test_sizes_are_positive_integers(name, size):
    sizes = {"num_rows": 4, "num_columns": 2, "num_parts": 2, name: size}

    with pytest.raises(
        ValueError, match=rf"{name} .* must be an integer of at least 1"
    ):
        replicator.ShardedEmbedding(**sizes)


def test_ids_must_be_integers():
    """A float would be cut."""
    with pytest.raises(ValueError, match=r"needs integer ids, but got 'float32'"):
        make(2)(tf.constant([1.0]))


def test_a_row_that_does_not_exist_is_an_error():
    """Beyond the end on CPUs; never another row."""
    with pytest.raises(tf.errors.InvalidArgumentError):
        make(2)(tf.constant([NUM_ROWS + 1]))
