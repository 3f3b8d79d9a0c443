"""Cross-replica batch normalization and an embedding in parts, against Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cluster_member import check_messages

import replicator

SHAPE = (8, 3, 3, 5)


def _inputs(offset=0.5):
    rng = np.random.default_rng(4)
    x = rng.normal(size=SHAPE) * np.arange(1, 6) + offset
    return x.astype(np.float32), rng.normal(size=SHAPE).astype(np.float32)


def _layer(kind, **options):
    layer = kind(momentum=0.8, **options)
    layer.build(SHAPE)
    layer.gamma.assign(tf.linspace(0.5, 1.5, 5))
    layer.beta.assign(tf.linspace(-1.0, 1.0, 5))
    return layer


def _pass(layer, x, weights):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layer(x, training=True)
        wide = tf.cast(out, tf.float32)
        loss = tf.reduce_sum(weights * wide**2)
    sources = [x, layer.gamma.value, layer.beta.value]
    return [wide, *tape.gradient(loss, sources)]


@pytest.mark.parametrize(
    ("dtype", "tolerance", "form", "offset"),
    [
        # Outputs have the compute type; statistics are those of float32.
        ("mixed_bfloat16", 2e-2, "shifted", 0.5),
        # With variances from 1, E[x^2] - E[x]^2 would be off by percents.
        ("float32", 2e-3, "two_pass", 1000.0),
    ],
)
def test_replicas_normalize_as_one_with_the_whole_batch(
    in_graph, dtype, tolerance, form, offset
):
    """On every backend: ``normalizes_over_all_replicas`` in ``tests/conformance``."""
    repl, n, num_steps = in_graph, in_graph.num_replicas, 2
    x, weights = _inputs(offset)
    whole = _layer(keras.layers.BatchNormalization, dtype=dtype)
    for _ in range(num_steps):
        expected = _pass(whole, tf.constant(x), tf.constant(weights))
    with repl.context():
        layer = _layer(
            replicator.CrossReplicaBatchNormalization, dtype=dtype, variance_form=form
        )

    def step(batch):
        out, dx, *dweights = _pass(layer, *batch)
        return [out, dx, *replicator.all_sum(dweights)]

    batch = tuple(
        replicator.PerReplica([tf.constant(part) for part in np.split(array, n)])
        for array in (x, weights)
    )
    for _ in range(num_steps):
        got = repl.run(step, batch)

    joined = [np.concatenate([np.asarray(v) for v in leaf]) for leaf in got[:2]]
    values = [*joined, *(np.asarray(leaf[n - 1]) for leaf in got[2:])]
    values += [np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)]
    wants = [*expected, whole.moving_mean, whole.moving_variance]
    for want, value in zip(wants, values, strict=True):
        scale = np.abs(np.asarray(want)).max()
        np.testing.assert_allclose(want, value, atol=tolerance * scale, rtol=tolerance)
    repl.assert_in_sync()


def test_inference_uses_the_moving_statistics(in_graph):
    x, _ = _inputs()
    layer = _layer(replicator.CrossReplicaBatchNormalization)
    batch = replicator.PerReplica([tf.constant(part) for part in np.split(x, 2)])

    def step(part):
        return layer(part, training=False)

    out = in_graph.run(step, batch)

    expected = _layer(keras.layers.BatchNormalization)(x, training=False)
    np.testing.assert_allclose(expected, np.concatenate(out.values), rtol=1e-5)
    assert "no collectives" in in_graph.explain()


def test_what_layers_cannot_do_is_refused():
    norm = replicator.CrossReplicaBatchNormalization
    check_messages(
        {
            "^ValueError: variance_form 'naive' is unknown; use 'shifted'": lambda: (
                norm(variance_form="naive")
            ),
            "^ValueError: synchronized=True makes Keras communicate too": lambda: norm(
                synchronized=True
            ),
            "^ValueError: renorm=True corrects the statistics of small batches": (
                lambda: norm(renorm=True)
            ),
            "^ValueError: num_parts 12 must be .* is 11": lambda: make(12),
            "^ValueError: .*needs integer ids, but got 'float32'": lambda: make(2)(
                tf.constant([1.0])
            ),
            # Beyond the end comes an error, and never another row.
            "^InvalidArgumentError": lambda: make(2)(tf.constant([NUM_ROWS + 1])),
        }
    )


def test_the_layer_can_be_made_again_from_its_configuration():
    layer = replicator.CrossReplicaBatchNormalization(variance_form="two_pass")

    assert "two_pass" == type(layer).from_config(layer.get_config()).variance_form


NUM_ROWS, NUM_COLUMNS = 11, 3
TABLE = np.random.default_rng(0).normal(size=(NUM_ROWS, NUM_COLUMNS)).astype("float32")
IDS = np.array([[0, 10, 3, 3], [7, 1, 10, 2]])


def make(num_parts):
    layer = replicator.ShardedEmbedding(NUM_ROWS, NUM_COLUMNS, num_parts=num_parts)
    for index, part in enumerate(layer.parts):
        part.assign(TABLE[index::num_parts])
    return layer


@pytest.mark.parametrize("num_parts", [1, 3, 11])
def test_lookups_are_those_of_one_table(num_parts):
    layer = make(num_parts)

    np.testing.assert_array_equal(layer.table(), TABLE)
    np.testing.assert_array_equal(layer(tf.constant(IDS, tf.int64)), TABLE[IDS])
    np.testing.assert_array_equal(layer(tf.constant(4)), TABLE[4])
    assert (0, NUM_COLUMNS) == layer(tf.zeros([0], tf.int32)).shape


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_on_replicas_is_that_of_one_table(in_graph, per_replica, optimizer):
    repl = in_graph
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
