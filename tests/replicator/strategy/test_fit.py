"""``fit`` of Keras on two replicas equals ``fit`` on one device."""

import contextlib

import keras
import numpy as np
import one_device
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import replicator
from tests.replicator.strategy.fit_programs import (
    PROGRAMS,
    X,
    Y,
    batches,
    layers,
    trained,
)

# An example that fails is not shrunk: each is two trainings.
GENERATE = (Phase.explicit, Phase.generate)


# With variables that are shared, and with copies in turn; XLA compiles for one device.
PLACED = [
    (name, "mirrored" if index % 2 and "XLA" not in name else "shared")
    for index, name in enumerate(PROGRAMS)
]


@pytest.mark.parametrize(("name", "placement"), PLACED)
def test_fit_equals_one_device(name, placement, tmp_path):
    program = PROGRAMS[name]
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)
    folder = tmp_path if "callbacks" in name else None

    one_device.assert_equal(lambda scope: trained(program, folder, scope), repl)


def _of_tokens(y, y_pred):
    mask = tf.cast(y != 0, tf.float32)
    loss = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def _of_counted_tokens(y, y_pred):
    loss = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
    count = tf.maximum(tf.math.count_nonzero(y), 1)
    weight = 1.0 / (tf.cast(count, tf.float32) + 1e-6)
    return tf.reduce_sum(tf.where(y != 0, loss, 0.0)) * weight


LOSSES = {
    "mask of Keras": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "mean of weights": keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    ),
    "of tokens": _of_tokens,
    "of counted tokens": _of_counted_tokens,
}


@settings(max_examples=2, deadline=None, phases=GENERATE)
@given(
    name=st.sampled_from(sorted(LOSSES)),
    num_replicas=st.sampled_from([2, 3]),
    lengths=st.sampled_from([9, 10, 13, 16]).flatmap(
        lambda n: st.lists(st.integers(1, 5), min_size=n, max_size=n)
    ),
)
def test_a_loss_by_token_is_divided_by_the_tokens_of_all_replicas(
    name, num_replicas, lengths
):
    count = len(lengths)
    words = 1 + np.arange(count * 5).reshape(count, 5) * 7 % 5
    words[np.arange(5) >= np.array(lengths)[:, None]] = 0
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    if "weights" in name:
        fit["sample_weight"] = np.linspace(0.5, 2.0, count)[:, None] * np.ones([1, 5])

    def program(scope):
        with scope:
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    keras.layers.Embedding(6, 4, mask_zero=True),
                    keras.layers.Dense(6),
                ]
            )
            model.compile("adam", LOSSES[name])
        return model.fit(words, words, **fit).history, model.get_weights()

    repl = replicator.create("in_graph", num_replicas=num_replicas)
    one_device.assert_equal(program, repl, rtol=2e-5, atol=2e-6)


@contextlib.contextmanager
def _policy(name):
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64" if name == "float64" else floatx)
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


def test_fit_in_float64_is_as_exact_as_on_one_device():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 1))
    fit = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0}

    def program(scope):
        with scope:
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            model.compile(optimizer, "mse", metrics=["mae"])
        history = model.fit(x, y, sample_weight=x[:, 0] ** 2, **fit).history
        return history, model.get_weights()

    with _policy("float64"):
        repl = replicator.create("in_graph", num_replicas=4)
        one_device.assert_equal(program, repl, rtol=1e-12, atol=1e-13)


def test_the_loss_scale_of_keras_skips_the_same_updates_on_all_replicas():
    """An example of one replica alone overflows, once in each of two epochs."""
    x = X.copy()
    x[18] = np.inf  # in the second batch, of the first replica

    def program(scope):
        with _policy("mixed_float16"), scope:
            model = keras.Sequential(layers())
            scaler = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=64.0
            )
            model.compile(scaler, "mse")
        model.fit(x, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        updates = int(scaler.inner_optimizer.iterations.numpy())
        assert (4, 16.0) == (updates, float(scaler.dynamic_scale.numpy()))
        return model.get_weights()

    repl = replicator.create("in_graph", num_replicas=2, variable_placement="mirrored")
    # Of float16, of which products of two halves of a batch differ.
    one_device.assert_equal(program, repl, rtol=5e-3, atol=5e-3)


def test_a_model_that_is_compiled_again_trains_as_it_was_compiled_last():
    """It trained with the first optimizer, and only what was trainable then."""

    def program(scope):
        with scope:
            model = keras.Sequential(layers())
            model.layers[0].trainable = False
            model.compile(keras.optimizers.SGD(0.1), "mse")
            model.fit(X, Y, batch_size=16, verbose=0)
            model.layers[0].trainable = True
            model.compile(keras.optimizers.SGD(0.01), "mse")
        return model.fit(X, Y, batch_size=16, verbose=0).history, model.get_weights()

    one_device.assert_equal(program, replicator.create("in_graph", num_replicas=2))


def step_by_step(strategy, model, optimizer):
    def step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(
                tf.square(model(x) - y)[:, 0], global_batch_size=16
            )
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    @tf.function
    def train(inputs):
        strategy.run(step, args=(inputs,))

    for inputs in strategy.experimental_distribute_dataset(batches().take(2)):
        train(inputs)


@pytest.mark.parametrize(
    ("placement", "is_fit", "has_slots"),
    [("shared", True, False), ("mirrored", False, True)],
)
def test_an_optimizer_that_was_made_outside_and_makes_no_slots_trains_alike(
    placement, is_fit, has_slots
):
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)

    def program(scope):
        momentum = 0.9 if has_slots else 0.0
        optimizer = keras.optimizers.SGD(0.05, momentum, weight_decay=0.01)
        with scope:
            strategy = tf.distribute.get_strategy()
            model = keras.Sequential(layers())
            model.compile(optimizer, "mse")
        if has_slots:
            optimizer.build(model.trainable_variables)
        if is_fit:
            model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        else:
            step_by_step(strategy, model, optimizer)
        return int(optimizer.iterations.numpy()), model.get_weights()

    one_device.assert_equal(program, repl)


def test_scores_before_training_do_not_change_it():
    outcomes = []
    for is_asked in (False, True):
        keras.utils.set_random_seed(1)
        repl = replicator.create("in_graph", num_replicas=2)
        with repl.scope():
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.BatchNormalization(synchronized=True)]
            )
            model.compile("sgd", "mse")
        if is_asked:
            model.evaluate(X, X, verbose=0)
            model.predict(X, verbose=0)
        model.fit(X, X, shuffle=False, verbose=0)
        outcomes.append([model.evaluate(X, X, verbose=0), *model.get_weights()])

    for first, second in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(first, second)
    assert "train_step, 2 replicas" in repl.explain()
    assert "all_reduce" in repl.explain()
