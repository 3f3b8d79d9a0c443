"""``verify_fit`` names what is not ``fit`` on one device, and nothing else."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import replicator
from replicator import StrategyError

_NUMBERS = np.random.RandomState(0)
X = _NUMBERS.randn(16, 4).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)
L = keras.layers


class Extra(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        self.add_loss(0.01 * self.function(x))
        return x


def mlp(*extra, out=1, activation=None):
    return keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(6, "tanh"),
            *extra,
            L.Dense(out, activation, kernel_initializer="zeros"),
        ]
    )


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"own": loss, "norm": tf.reduce_mean(tf.abs(x))}


def own_step(function):
    def make():
        model = OwnStep([keras.Input((4,)), L.Dense(3, "tanh"), L.Dense(1)])
        model.own_loss = function
        return model

    return make


def load_balance(x):
    shares = tf.nn.softmax(x)
    chosen = tf.one_hot(tf.argmax(shares, axis=1), shares.shape[1])
    return tf.reduce_sum(
        tf.reduce_mean(shares, axis=0) * tf.reduce_mean(chosen, axis=0)
    )


def root(y, y_pred):
    return tf.sqrt(tf.reduce_mean(tf.square(y - y_pred)))


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y, y_pred, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(tf.abs(y - y_pred))))

    def result(self):
        return self.value


# What is recognised: examples that are compared, by a layer or a penalty; a sum;
# statistics. Losses that compare and add are in ``tests/programs/published``.
WRONG = {
    "behind zeros": (
        lambda: mlp(
            L.UnitNormalization(axis=0), L.Dense(3, kernel_initializer="zeros")
        ),
        "mse",
        "compared",
    ),
    "load balance": (lambda: mlp(Extra(load_balance)), "mse", "compared"),
    "batch norm": (lambda: mlp(L.BatchNormalization()), "mse", "statistics of a batch"),
    "sum of an own step": (
        own_step(lambda y, p: tf.reduce_sum(tf.square(y - p))),
        None,
        'reduction="sum"',
    ),
}


def verified(make, loss, optimizer="adam", batch=(X, Y), **options):
    """What is found, by a replicator of two; weights and draws stay as they are."""
    keras.utils.set_random_seed(1)
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.scope():
        model = make()
        optimizer = optimizer() if callable(optimizer) else optimizer
        model.compile(optimizer, loss, **options)
    before = [np.asarray(variable) for variable in model.variables]
    found = repl.verify_fit(model, batch)
    for old, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(variable))
    return found


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_the_step_of_one_device_is_named(name):
    make, loss, reason = WRONG[name]

    found = verified(make, loss)

    assert not found.equal
    assert reason in str(found)
    assert all(row.reason for row in found.different)


def test_metrics_and_logs_that_are_no_means_are_named():
    found = verified(mlp, "mse", metrics=[root, Largest(), "mae"])

    named = {(row.kind, row.name) for row in found.different}
    assert named == {(k, n) for k in ("metric", "log") for n in ("root", "largest")}
    assert "not a mean of examples" in str(found)


class Augmenting(keras.Sequential):
    def train_step(self, data):
        x, y = data
        return super().train_step((x + tf.random.normal(tf.shape(x)), y))


class Clipping(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        weights = self.trainable_variables
        gradients, size = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.1)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss, "norm": size}


def _attention():
    words = keras.Input((4,))
    rows = L.Embedding(6, 4, mask_zero=True)(ops.cast(ops.abs(words) * 2.0, "int32"))
    rows = L.LayerNormalization()(L.MultiHeadAttention(2, 2, dropout=0.1)(rows, rows))
    return keras.Model(words, L.Dense(1)(L.GlobalAveragePooling1D()(rows)))


WEIGHTS = _NUMBERS.rand(16).astype(np.float32)
RIGHT = {
    "draws of its own, half precision": (
        lambda: Augmenting(
            [
                keras.Input((4,)),
                L.Dense(3, dtype="mixed_float16"),
                L.Dense(3, dtype="mixed_bfloat16"),
                L.Dense(1),
            ]
        ),
        {},
    ),
    "draws, statistics, weights of examples, metrics, a clip": (
        lambda: mlp(
            *(L.Dropout(0.5), L.GaussianNoise(0.3)),
            L.BatchNormalization(synchronized=True),
            activation="sigmoid",
        ),
        {
            "loss": "binary_crossentropy",
            "metrics": ["AUC", "accuracy"],
            "weighted_metrics": ["mae"],
            "batch": (X, Y, WEIGHTS),
            "optimizer": {"global_clipnorm": 0.1},
        },
    ),
    "attention with a mask": (_attention, {}),
    "clipped by its step": (
        lambda: Clipping([keras.Input((4,)), L.Dense(3), L.Dense(1)]),
        {"loss": None},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_equal(name):
    make, options = RIGHT[name]
    own = options.get("optimizer", {})

    found = verified(
        make,
        **{"loss": "mse", **options, "optimizer": lambda: keras.optimizers.Adam(**own)},
    )

    assert found.equal, str(found)
    assert all(row.equal for row in found.rows), str(found)
    assert {row.kind for row in found.rows} >= {"gradient", "log"}


class Shuffled(keras.Sequential):
    def train_step(self, data):
        x, y = data
        return super().train_step((tf.random.shuffle(x), y))  # drawn here


def test_what_cannot_be_held_still_is_not_compared():
    found = verified(lambda: Shuffled([keras.Input((4,)), L.Dense(1)]), "mse")

    assert found.equal
    assert "not comparable: random operation at" in str(found)
    assert "# drawn here" in str(found)


@pytest.mark.parametrize(("is_right", "steps"), [(True, 2), (False, 1)])
def test_a_scope_verifies_the_first_batch_before_it_trains(is_right, steps):
    repl = replicator.create("in_graph", num_replicas=2)
    outcomes = []
    for scope in (repl.scope(verify=True), repl.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = mlp() if is_right else mlp(L.UnitNormalization(axis=0))
            model.compile("adam", "mse", steps_per_execution=steps)
        before = model.get_weights()
        if not is_right and not outcomes:
            with pytest.raises(StrategyError, match=r"gradient .* DIFFERS"):
                model.fit(X, Y, batch_size=5, verbose=0)
            for old, new in zip(before, model.get_weights(), strict=True):
                np.testing.assert_array_equal(old, new)
            return
        losses = model.fit(X, Y, batch_size=5, verbose=0).history["loss"]
        outcomes.append([*losses, *model.get_weights()])

    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_cannot_be_checked_is_refused():
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.scope():
        model, bare = mlp(), mlp()
        model.compile("sgd", "mse")
    cases = [
        (bare, (X, Y), r"compiled keras\.Model"),
        (model, (X[:1], Y[:1]), "at least 2"),
        (model, (X, Y[:3]), "same number of examples"),
        (model, (X[:1].repeat(4, 0), Y[:1].repeat(4, 0)), "equal examples"),
    ]
    for given, batch, message in cases:
        with pytest.raises(StrategyError, match=message):
            repl.verify_fit(given, batch)
    with pytest.raises(StrategyError, match="another scope"):
        replicator.create("in_graph", num_replicas=2).verify_fit(model, (X, Y))
    with pytest.raises(StrategyError, match="several replicas"):
        replicator.create("single").verify_fit(model, (X, Y))
