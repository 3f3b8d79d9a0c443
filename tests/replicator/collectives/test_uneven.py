"""Steps whose replicas hold different numbers of examples average as one batch."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import uneven_epoch
from cluster_member import check_messages

import replicator
from replicator import InputContext, errors


@pytest.mark.parametrize("repl_once", [("tf_mirrored", 2)], indirect=True)
def test_an_epoch_with_a_partial_last_step_is_that_of_one_device(repl_once):
    """Every example counts equally; on our own replicas, the fuzzer draws epochs."""
    single, num_examples = replicator.create("single"), 13
    expected = uneven_epoch.train(
        single, num_examples, make_norm=keras.layers.BatchNormalization
    )
    norm = functools.partial(
        replicator.CrossReplicaBatchNormalization, variance_form="two_pass"
    )

    found = uneven_epoch.train(repl_once, num_examples, make_norm=norm)

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
                errors.SplitBatchError,
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
