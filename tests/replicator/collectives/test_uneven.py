"""Steps whose replicas hold different numbers of examples average as one batch."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import InputContext, InputReplicationMode, errors


def _data(num_examples):
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(num_examples, 3)).astype(np.float32),
        rng.normal(size=num_examples).astype(np.float32),
    )


def _train(repl, num_examples, mode=InputReplicationMode.PER_WORKER):
    """One epoch of linear regression, global batch 8; returns losses and weights."""
    with repl.context():
        weight = tf.Variable([0.1, 0.2, 0.3])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    dataset = tf.data.Dataset.from_tensor_slices(_data(num_examples))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(dataset, ctx, 8), mode
    )

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = tf.linalg.matvec(x, weight) - y
            loss = replicator.mean_over_examples(error**2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    num_steps = -(-num_examples // 8)
    losses = [
        float(repl.reduce("mean", repl.run(step, inputs))) for _ in range(num_steps)
    ]
    return losses, weight.numpy()


def _reference(num_examples):
    """The same by NumPy, on whole global batches."""
    xs, ys = _data(num_examples)
    weight, velocity = np.float32([0.1, 0.2, 0.3]), np.zeros(3, np.float32)
    losses = []
    for start in range(0, num_examples, 8):
        x, y = xs[start : start + 8], ys[start : start + 8]
        error = x @ weight - y
        losses.append(np.mean(error**2))
        velocity = 0.9 * velocity - 0.1 * (2 * x.T @ error / len(x))
        weight = weight + velocity
    return losses, weight


@pytest.mark.parametrize("num_examples", [pytest.param(16, marks=pytest.mark.full), 9])
def test_an_epoch_with_a_partial_last_step_equals_the_single_device(
    repl_once, num_examples
):
    """Losses and weights are those of whole global batches, to 1e-6."""
    losses, weight = _train(repl_once, num_examples)
    expected_losses, expected_weight = _reference(num_examples)

    np.testing.assert_allclose(expected_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(expected_weight, weight, rtol=0, atol=1e-6)


def test_pipelines_of_each_replica_average_the_same(in_graph):
    """PER_REPLICA parts are those that one pipeline would deal."""
    losses, _ = _train(in_graph, 19, InputReplicationMode.PER_REPLICA)

    np.testing.assert_allclose(_reference(19)[0], losses, rtol=1e-5)


def _normalized_epoch(repl, make_layer, num_examples, weigh):
    """One epoch of a normalized regression; returns losses and all variables."""
    keras.utils.set_random_seed(1)
    with repl.context():
        layers = [keras.layers.Dense(4), make_layer(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
    dataset = tf.data.Dataset.from_tensor_slices(_data(num_examples))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(dataset, ctx, 8)
    )

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = model(x, training=True)[:, 0] - y
            loss = weigh(error**2)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return loss

    losses = [
        float(repl.reduce("mean", repl.run(step, inputs)))
        for _ in range(-(-num_examples // 8))
    ]
    return losses, [np.asarray(variable) for variable in model.variables]


@pytest.mark.parametrize("num_examples", [13, 9])
def test_batch_norm_of_a_partial_step_counts_every_example_equally(
    repl_once, num_examples
):
    """Also with replicas that have none: as Keras' layer on one device.

    Before, replicas weighed equally, and an empty one made every weight NaN.
    """
    form = "two_pass" if num_examples == 13 else "shifted"

    losses, variables = _normalized_epoch(
        repl_once,
        lambda: replicator.CrossReplicaBatchNormalization(
            momentum=0.5, variance_form=form
        ),
        num_examples,
        replicator.mean_over_examples,
    )

    expected_losses, expected = _normalized_epoch(
        replicator.create("single"),
        lambda: keras.layers.BatchNormalization(momentum=0.5),
        num_examples,
        tf.reduce_mean,
    )
    np.testing.assert_allclose(expected_losses, losses, rtol=1e-5)
    for want, value in zip(expected, variables, strict=True):
        np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)


def test_batch_norm_of_whole_batches_has_the_bits_of_known_shapes(in_graph):
    """The weight of equal numbers is exactly 1."""
    x, _ = _data(16)
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


def test_batch_norm_without_any_example_keeps_its_statistics(repl_once):
    """Nobody has a value: there is nothing to move them to."""
    with repl_once.context():
        layer = replicator.CrossReplicaBatchNormalization()
        layer.build([None, 3])
    inputs = repl_once.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([0, 3])).repeat()
    )
    layer.moving_mean.assign([1.0, 2.0, 3.0])

    repl_once.run(functools.partial(layer, training=True), inputs)

    assert [1.0, 2.0, 3.0] == pytest.approx(layer.moving_mean.numpy())


def test_a_replica_without_examples_keeps_the_statistics_of_keras_batch_norm(in_graph):
    """Its mean of nothing would be NaN, and so would the weight's gradient."""
    with in_graph.context():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build([None, 1])
        optimizer = in_graph.wrap_optimizer(keras.optimizers.SGD(0.1))
    data = tf.data.Dataset.from_tensor_slices(tf.constant([[2.0], [4.0], [6.0]]))
    inputs = in_graph.make_input_iterator(
        lambda ctx: replicator.split_global_batches(data, ctx, 2)
    )

    def step(x):
        with tf.GradientTape() as tape:
            out = layer(x, training=True)[:, 0]
            loss = replicator.mean_over_examples((out - 1.0) ** 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )

    in_graph.run(step, inputs)
    in_graph.run(step, inputs)  # one example, for the second replica

    # 2 on the first; (4 / 2 + 6) / 2 on the second.
    assert (1.0 + 4.0) / 2 == pytest.approx(float(layer.moving_mean[0]))
    for variable in layer.variables:
        assert np.isfinite(variable.numpy()).all()


def test_a_plain_partial_last_batch_runs_on_every_backend(repl):
    """batch() without drop_remainder: replicas weigh equally, whatever they hold."""
    num_replicas = repl.num_replicas
    num_examples = 4 * num_replicas - 1  # the last replica's second batch has one
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.range(num_examples).batch(2)
    )

    def step(x):
        return tf.reduce_mean(tf.cast(x, tf.float32)), tf.size(x)

    repl.run(step, inputs)
    means, sizes = repl.run(step, inputs)

    expected = [
        np.arange(num_examples)[2 * i : 2 * i + 2].mean()
        for i in range(num_replicas, 2 * num_replicas)
    ]
    assert [2] * (num_replicas - 1) + [1] == [int(v) for v in sizes]
    assert expected == [float(v) for v in means]
    assert np.mean(expected) == pytest.approx(float(repl.reduce("mean", means)))


def test_a_step_without_any_example_is_zero_and_not_nan(repl_once):
    """All parts empty: nothing to learn from, and nothing broken."""
    inputs = repl_once.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([0])).repeat()
    )

    out = repl_once.run(replicator.mean_over_examples, inputs)

    assert [0.0] * repl_once.num_replicas == [float(v) for v in out]


def test_values_must_be_one_per_example(repl_once):
    with pytest.raises(
        ValueError, match=r"one floating value per example.*got float32 of shape \(\)"
    ):
        repl_once.run(lambda: replicator.mean_over_examples(tf.constant(1.0)))


def test_it_belongs_in_a_replica():
    """Outside a step there are no replicas to count examples of."""
    with pytest.raises(
        errors.CollectiveContextError, match=r"mean_over_examples\(\) was called in"
    ):
        replicator.mean_over_examples(tf.constant([1.0]))


def test_pipelines_must_feed_equal_numbers_of_replicas():
    """Three replicas on two pipelines cannot take turns evenly."""
    ctx = InputContext(num_input_pipelines=2, num_replicas_in_sync=3)

    with pytest.raises(
        errors.SplitBatchError, match=r"3 replicas are not divisible by 2 input"
    ):
        replicator.split_global_batches(tf.data.Dataset.range(3), ctx, 3)


@pytest.mark.parametrize("size", [2.0, None, True, "4", 10**30, tf.constant([4])])
def test_a_global_batch_has_a_number_of_examples(size):
    """Floats would give shapes that are none."""
    message = r"global_batch_size .* must be an integer .the examples of one step over"

    with pytest.raises(errors.SplitBatchError, match=message):
        InputContext(num_replicas_in_sync=2).get_per_replica_batch_size(size)
    with pytest.raises(errors.SplitBatchError, match=message):
        replicator.split_global_batches(tf.data.Dataset.range(4), InputContext(), size)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("num_pipelines", [1, 2])
def test_pipelines_that_shuffle_differently_are_refused(seed, num_pipelines):
    """Of 24 examples they fed 8 twice and 8 never, and did not say so."""
    tf.random.set_seed(None)  # a seed of the whole program would seed the shuffle
    read = []
    for pipeline in range(num_pipelines):
        place = {"num_input_pipelines": num_pipelines, "input_pipeline_id": pipeline}
        ctx = InputContext(num_replicas_in_sync=2, **place)
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


def test_a_global_batch_may_be_an_integer_of_numpy():
    share = InputContext(num_replicas_in_sync=2).get_per_replica_batch_size(np.int64(8))

    assert (4, int) == (share, type(share))


@pytest.mark.parametrize(
    ("dataset", "ctx", "message"),
    [
        (
            [1],
            InputContext(),
            r"takes a tf.data.Dataset of single .*, but got \[1\]; cr",
        ),
        (
            tf.data.Dataset.range(4),
            None,
            r"takes the InputContext that .*, but got None",
        ),
    ],
)
def test_global_batches_are_of_a_dataset_for_a_context(dataset, ctx, message):
    with pytest.raises(TypeError, match=rf"split_global_batches\(\) {message}"):
        replicator.split_global_batches(dataset, ctx, 4)


@pytest.mark.parametrize("name", ["deterministic", "autotune"])
def test_flags_of_pipelines_are_true_or_false(name):
    with pytest.raises(TypeError, match=rf"{name} 'no' must be True or False"):
        replicator.default_data_options(**{name: "no"})


def test_recommended_options_are_what_they_say():
    """Order is kept, a stock strategy takes no second share, threads are as asked."""
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
    with pytest.raises(ValueError, match=r"num_threads 0 must be an integer of at"):
        replicator.default_data_options(num_threads=0)
