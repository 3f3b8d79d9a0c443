"""Layers that communicate, and steps in which replicas have unequal numbers of rows."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from case_cluster import check_messages

import replicator
from replicator import InputContext

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


@pytest.mark.parametrize("repl_once", [("tf_mirrored", 2)], indirect=True)
def test_an_epoch_with_a_partial_last_step_is_that_of_one_device(repl_once):
    """Every example counts equally; on our own replicas, the fuzzer draws epochs."""
    single, num_examples = replicator.create("single"), 13
    expected = tiny_models.train_uneven_epoch(
        single, num_examples, make_norm=keras.layers.BatchNormalization
    )
    norm = functools.partial(
        replicator.CrossReplicaBatchNormalization, variance_form="two_pass"
    )

    found = tiny_models.train_uneven_epoch(repl_once, num_examples, make_norm=norm)

    np.testing.assert_allclose(expected["losses"], found["losses"], rtol=1e-5)
    for want, value in zip(expected["weights"], found["weights"], strict=True):
        np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)


def test_batch_norm_of_whole_batches_has_the_bits_of_known_shapes(in_graph):
    """The weight of equal numbers is exactly 1."""
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(x)
    found = []
    for drop_remainder in (False, True):
        with in_graph.context():
            layer = replicator.CrossReplicaBatchNormalization()
            layer.build([None, 3])
        inputs = in_graph.make_input_iterator(
            lambda _, drop=drop_remainder: data.batch(8, drop_remainder=drop)
        )
        step = functools.partial(layer, training=True)
        found.append([*in_graph.run(step, inputs), layer.moving_variance.numpy()])

    for unknown, known in zip(*found, strict=True):
        np.testing.assert_array_equal(known, unknown)


@pytest.mark.parametrize(
    "repl_once", [("in_graph", 2), ("tf_mirrored", 2)], indirect=True
)
def test_a_step_without_any_example_teaches_nothing(repl_once):
    with repl_once.context():
        layer = replicator.CrossReplicaBatchNormalization()
        layer.build([None, 3])
    inputs = repl_once.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([0, 3])).repeat()
    )
    layer.moving_mean.assign([1.0, 2.0, 3.0])

    out = repl_once.run(
        lambda x: replicator.mean_over_examples(layer(x, training=True)[:, 0]), inputs
    )

    assert [0.0] * repl_once.num_replicas == [float(v) for v in out]
    assert [1.0, 2.0, 3.0] == pytest.approx(layer.moving_mean.numpy())


NUMBERS = tf.data.Dataset.range(4)
# Three replicas on two pipelines cannot take turns evenly.
THREE_ON_TWO = InputContext(num_input_pipelines=2, num_replicas_in_sync=3)


def test_what_cannot_be_divided_is_refused():
    split, mean = replicator.split_global_batches, replicator.mean_over_examples
    check_messages(
        {
            r"^ValueError: .*one floating value per example.*got float32 of shape "
            r"\(\)": (
                lambda: replicator.create("single").run(lambda: mean(tf.constant(1.0)))
            ),
            r"^CollectiveContextError: mean_over_examples\(\) was called in": lambda: (
                mean(tf.constant([1.0]))
            ),
            "^SplitBatchError: 3 replicas are not divisible by 2 input": lambda: split(
                NUMBERS, THREE_ON_TWO, 3
            ),
            "^SplitBatchError: global_batch_size .* must be an integer .the examples "
            "of one step over": lambda: split(NUMBERS, InputContext(), 2.0),
            "^ValueError: num_threads 0 must be an integer of at": lambda: (
                replicator.default_data_options(num_threads=0)
            ),
        }
    )


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("num_pipelines", [1, 2])
def test_pipelines_that_shuffle_differently_are_refused(seed, num_pipelines):
    tf.random.set_seed(None)  # a seed of the whole program would seed the shuffle
    read = []
    for pipeline in range(num_pipelines):
        place = {"num_input_pipelines": num_pipelines, "input_pipeline_id": pipeline}
        ctx = InputContext(num_replicas_in_sync=4, **place)
        dataset = tf.data.Dataset.range(24).shuffle(24, seed=seed)
        if seed is None and num_pipelines > 1:
            with pytest.raises(
                replicator.SplitBatchError,
                match=r"2 input pipelines read a dataset that has a shuffle\(\) "
                r"without a seed.*repeated and lost; write shuffle\(\.\.\., seed=",
            ):
                replicator.split_global_batches(dataset, ctx, 4)
            return
        for batch in replicator.split_global_batches(dataset, ctx, 4):
            read += batch.numpy().tolist()

    assert list(range(24)) == sorted(read)


def test_recommended_options_are_what_they_say():
    options = replicator.default_data_options(num_threads=2)
    shared = replicator.default_data_options()
    dataset = tf.data.Dataset.range(3).with_options(options)

    off = tf.data.experimental.AutoShardPolicy.OFF
    assert dataset.options().deterministic
    assert off == dataset.options().experimental_distribute.auto_shard_policy
    assert 2 == dataset.options().threading.private_threadpool_size
    assert 1 == dataset.options().threading.max_intra_op_parallelism
    assert shared.threading.private_threadpool_size is None
    assert not shared.autotune.enabled
    assert replicator.default_data_options(autotune=True).autotune.enabled
