"""Losses and statistics of ``fit`` are those of one device; see ``test_verify``."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import replicator
from replicator.errors import StrategyError

NUM_EXAMPLES = 16
_NUMBERS = np.random.RandomState(0)
X = _NUMBERS.randn(NUM_EXAMPLES, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def _mean(value):
    """The mean over all replicas, or that of one device."""
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce("mean", value) if replica else value


def root_of_all(y, y_pred):
    return tf.sqrt(_mean(tf.reduce_mean(tf.square(y - y_pred))))


def means_by_column(y, y_pred):
    """A mean by column that is only multiplied and added."""
    return tf.reduce_sum(0.5 * tf.reduce_mean(tf.abs(y - y_pred), axis=0))


def root_by_column_of_all(y, y_pred):
    square = _mean(tf.reduce_mean(tf.square(y - y_pred), axis=0))
    return tf.reduce_mean(tf.sqrt(square))


def sum_of_means(y, y_pred):
    """What is linear in means is a mean."""
    per_example = tf.abs(y - y_pred)[:, 0]
    penalty = 0.1 * tf.reduce_mean(tf.square(y_pred))
    return per_example + penalty - tf.reduce_mean(y_pred) / 8.0


def _trained(loss, scope):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def _two():
    return replicator.create("in_graph", num_replicas=2).scope()


@pytest.mark.parametrize(
    "loss", [root_of_all, root_by_column_of_all, sum_of_means, means_by_column]
)
def test_means_and_functions_of_those_of_all_replicas_train_as_on_one_device(loss):
    """Means, and functions of means of all replicas."""
    alone = _trained(loss, contextlib.nullcontext())
    both = _trained(loss, _two())

    for one, two in zip(alone, both, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


def test_batch_norm_of_each_replica_is_said():
    """Training goes on as under ``tf.distribute``, but one device has other numbers."""
    norms = keras.layers.BatchNormalization, replicator.CrossReplicaBatchNormalization
    for norm in norms:
        with _two():
            model = keras.Sequential([keras.Input((4,)), norm(name="norm")])
            model.compile("sgd", "mse")
        seen = (
            pytest.warns(UserWarning, match=r"'norm' of Sequential .*synchronized=True")
            if norm is norms[0]
            else contextlib.nullcontext()
        )
        with seen:
            model.fit(X, X, verbose=0)


def test_a_loss_that_sums_is_refused():
    with _two():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))

    with pytest.raises(StrategyError, match=r"MeanSquaredError\(reduction=\"sum\"\)"):
        model.fit(X, Y, verbose=0)


def of_tokens(y, y_pred):
    """As the tutorial of the Transformer has it."""
    mask = tf.cast(y != 0, tf.float32)
    loss = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def of_counted_tokens(y, y_pred):
    """With a number of Python, and integers that are counted."""
    loss = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
    count = tf.maximum(tf.math.count_nonzero(y), 1)
    weight = 1.0 / (tf.cast(count, tf.float32) + 1e-6)
    return tf.reduce_sum(tf.where(y != 0, loss, 0.0)) * weight


LOSSES = {
    "mask of Keras": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "mean of weights": keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    ),
    "of tokens": of_tokens,
    "of counted tokens": of_counted_tokens,
}


@settings(max_examples=6, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_loss_by_token_is_divided_by_the_tokens_of_all_replicas(data):
    """Any lengths, a batch whose last part is uneven, or leaves replicas none."""
    name = data.draw(st.sampled_from(sorted(LOSSES)))
    num_examples = data.draw(st.sampled_from([9, 10, 13, 16]))
    num_replicas = data.draw(st.sampled_from([2, 3]))
    lengths = data.draw(
        st.lists(st.integers(1, 5), min_size=num_examples, max_size=num_examples)
    )
    words = 1 + np.arange(num_examples * 5).reshape(num_examples, 5) * 7 % 5
    words[np.arange(5) >= np.array(lengths)[:, None]] = 0
    weights = np.linspace(0.5, 2.0, num_examples)[:, None] * np.ones([1, 5])
    outcomes = []
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    for scope in (contextlib.nullcontext(), repl.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    keras.layers.Embedding(6, 4, mask_zero=True),
                    keras.layers.Dense(6),
                ]
            )
            model.compile("adam", LOSSES[name])
        weighted = {"sample_weight": weights} if "weights" in name else {}
        history = model.fit(
            words, words, batch_size=8, shuffle=False, verbose=0, **weighted
        ).history
        outcomes.append([*np.ravel(list(history.values())), *model.get_weights()])

    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-5, atol=2e-6)


# Weights of replicas are float32, such as 6/5.
TOLERANCE = 1e-6


def _fitted(scope, layer, num_examples, wrapped=lambda optimizer: optimizer):
    """Weights and losses of two epochs, whose last batch is smaller than 16."""
    x = np.random.RandomState(0).randn(num_examples, 4)
    y = x.sum(axis=1, keepdims=True) ** 2
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="float64"),
                keras.layers.Dense(3, use_bias=False, dtype="float64"),
                layer(),
                keras.layers.Dense(1, dtype="float64"),
            ]
        )
        model.compile(wrapped(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
    fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    return [*model.fit(x, y, **fit).history["loss"], *model.get_weights()]


LAYERS = {
    "keras": lambda: keras.layers.BatchNormalization(
        synchronized=True, dtype="float64"
    ),
    "own": lambda: replicator.CrossReplicaBatchNormalization(dtype="float64"),
}


@pytest.mark.parametrize(
    ("layer", "num_examples", "is_wrapped"),
    [
        ("keras", 21, False),
        pytest.param("own", 21, True, marks=pytest.mark.full),
        ("keras", 17, False),
    ],
)
def test_a_smaller_last_batch_has_the_gradient_of_one_device(
    layer, num_examples, is_wrapped
):
    """5 examples over two replicas, or 1, which leaves none to a replica.

    Gradients that went through the statistics had the weights of the wrong replica.
    """
    repl = replicator.create("in_graph", num_replicas=2)
    wrapped = repl.wrap_optimizer if is_wrapped else lambda optimizer: optimizer

    alone = _fitted(
        contextlib.nullcontext(),
        lambda: keras.layers.BatchNormalization(dtype="float64"),
        num_examples,
    )
    both = _fitted(repl.scope(), LAYERS[layer], num_examples, wrapped)

    for one, two in zip(alone, both, strict=True):
        np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=TOLERANCE)
