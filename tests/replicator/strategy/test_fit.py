"""``fit`` of Keras on two replicas equals ``fit`` on one device."""

import contextlib
import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import replicator

# Programs that end in ``fit``, one per group of features, and what they are asked.

NUM_EXAMPLES = 37  # a last batch of 5 examples, which two replicas cannot share equally
SIZES = (8, 5, 1, 8)  # of batches: even, uneven, none for a replica, and more


def _data():
    numbers = np.random.RandomState(0)
    x = numbers.randn(NUM_EXAMPLES, 4).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


X, Y = _data()
LABELS = (Y[:, 0] > 0).astype(np.int32)
WEIGHTS = np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32)


def batches(y=Y):
    return tf.data.Dataset.from_tensor_slices((X, y)).batch(16)


def _uneven(x=X, y=Y):
    data = tf.data.Dataset.from_tensor_slices((x, y))
    starts = np.cumsum([0, *SIZES])
    parts = [
        data.skip(start).take(size).batch(size)
        for start, size in zip(starts, SIZES, strict=False)
    ]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


class OfOneDevice(keras.Sequential):
    def train_step(self, data):
        """A mean of its own, and one of Keras, which would divide by replicas."""
        x, y = data[:2]
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            error = tf.reduce_mean(tf.square(y_pred - y))
            loss = error + keras.losses.MeanAbsoluteError()(y, y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss, "error": error}


class Counting(keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self.total = keras.metrics.Sum(name="total")
        self.mean = keras.metrics.Mean(name="mean")

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.total.update_state(loss)
        self.mean.update_state(loss)
        self.mean.update_state(tf.reduce_mean(y_pred))
        logs = self.compute_metrics(x, y, y_pred)
        return {**logs, "own loss": loss, "output": tf.reduce_mean(y_pred)}


class Clipping(keras.Sequential):
    """Clips by the norm of all rows and weights, says what it was, divides by norms."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        weights = self.trainable_variables
        grads, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.1)
        # Those of rows, and the last one, stay as they are.
        rows, *between, last = grads
        grads = [rows, *(g / (tf.norm(g) + 1e-6) for g in between), last]
        self.optimizer.apply(grads, weights)
        return {"loss": loss, "norm": norm, "size": tf.norm(last)}


def _clipping():
    return Clipping(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(10, 4),
            keras.layers.GlobalAveragePooling1D(),
            *layers()[1:],
        ]
    )


def recall(y, y_pred):
    """A ratio of sums, as it is often written."""
    hits = tf.reduce_sum(tf.cast((y > 0) & (y_pred > 0), tf.float32))
    return hits / (tf.reduce_sum(tf.cast(y > 0, tf.float32)) + 1.0)


def counted(y, y_pred):
    hits = tf.math.count_nonzero((y > 0) & (y_pred > 0))
    number = tf.reduce_sum(tf.cast(y > 0, tf.int32)) + 1
    return tf.cast(hits, tf.float32) / tf.cast(number, tf.float32)


class PlainSum(keras.metrics.Metric):
    def __init__(self, name="plain"):
        super().__init__(name=name)
        self.total = tf.Variable(0.0, trainable=False)

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y - y_pred)))

    def result(self):
        return self.total

    def reset_state(self):
        self.total.assign(0.0)


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest"):
        super().__init__(name=name)
        options = {"aggregation": "only_first_replica"}
        self.value = self.add_variable((), "zeros", name="value", **options)

    def update_state(self, y, y_pred, sample_weight=None):
        errors = tf.abs(y - y_pred)
        replica = tf.distribute.get_replica_context()
        errors = replica.all_gather(errors, axis=0) if replica else errors
        self.value.assign(tf.maximum(self.value, tf.reduce_max(errors)))

    def result(self):
        return self.value


def _metrics():
    return [recall, counted, "mae", "AUC", PlainSum(), Largest()]


def _mean(value):
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce("mean", value) if replica else value


def functions_of_means(y, y_pred):
    root = tf.sqrt(_mean(tf.reduce_mean(tf.square(y - y_pred))))
    by_column = _mean(tf.reduce_mean(tf.square(y - y_pred), axis=0))
    errors = tf.reduce_mean(tf.abs(y - y_pred), axis=0)
    return root + tf.reduce_mean(tf.sqrt(by_column)) + tf.reduce_sum(0.5 * errors)


def layers(outputs=1, activation=None):
    return [
        keras.Input((4,)),
        keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
        keras.layers.Dense(outputs, activation=activation),
    ]


def _normed():
    """Gradients through statistics had the weights of the wrong replica."""
    double = {"dtype": "float64"}
    norms = keras.layers.BatchNormalization, replicator.CrossReplicaBatchNormalization
    return keras.Sequential(
        [
            keras.Input((4,), **double),
            keras.layers.Dense(3, use_bias=False, **double),
            norms[0](synchronized=True, **double),
            keras.layers.Dense(3, use_bias=False, **double),
            norms[1](**double),
            keras.layers.Dense(1, **double),
        ]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    model: Any = lambda: keras.Sequential(layers())
    optimizer: Any = lambda: keras.optimizers.SGD(0.05, momentum=0.9)
    compiled: Any = lambda: {"loss": "mse", "metrics": ["mae"]}
    fit: Any = lambda: {"x": X, "y": Y, "batch_size": 16}
    asked: tuple[str, ...] = ()  # What is asked afterwards.


WORDS = np.arange(4 * NUM_EXAMPLES).reshape(NUM_EXAMPLES, 4) % 7
PROGRAMS = {
    "arrays, a split, weights, callbacks": Program(
        asked=("predictions", "on batches"),
        optimizer=lambda: keras.optimizers.AdamW(0.01, use_ema=True),
        compiled=lambda: {"loss": "mse", "weighted_metrics": ["mae"]},
        fit=lambda: {
            "x": X,
            "y": Y,
            "batch_size": 16,
            "epochs": 4,
            "sample_weight": WEIGHTS,
            "validation_split": 0.3,
        },
    ),
    "a dataset, class weights, steps per execution, XLA": Program(
        asked=("scores",),
        model=lambda: keras.Sequential(layers(1, "sigmoid")),
        compiled=lambda: {
            "loss": keras.losses.BinaryCrossentropy(),
            "metrics": ["accuracy", keras.metrics.TruePositives()],
            "steps_per_execution": 2,
            "jit_compile": tf.distribute.has_strategy(),  # takes long
        },
        fit=lambda: {
            "x": batches(LABELS).repeat(),
            "steps_per_epoch": 4,
            "validation_data": batches(LABELS),
            "class_weight": {0: 1, 1: 3},
        },
    ),
    "a step of one device": Program(
        compiled=dict, model=lambda: OfOneDevice(layers()), fit=lambda: {"x": _uneven()}
    ),
    "functions of means": Program(
        model=lambda: Counting(layers()),  # of batches of a known size
        compiled=lambda: {"loss": functions_of_means, "metrics": [recall, counted]},
        fit=lambda: {
            "x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(
                8, drop_remainder=True
            )
        },
    ),
    "metrics and logs of a batch": Program(
        asked=("scores",),
        model=lambda: Counting(layers()),
        compiled=lambda: {"loss": "mse", "metrics": _metrics()},
        fit=lambda: {"x": _uneven()},
    ),
    "a step that clips": Program(
        compiled=dict, model=_clipping, fit=lambda: {"x": _uneven(WORDS, Y)}
    ),
    "synchronized batch norm": Program(model=_normed, fit=lambda: {"x": _uneven()}),
}


def _callbacks(folder):
    made = keras.callbacks
    return [
        made.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
        made.BackupAndRestore(folder / "backup"),
        made.EarlyStopping(patience=2),
        made.ReduceLROnPlateau(patience=1, min_delta=10.0),
        made.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        made.CSVLogger(folder / "log.csv"),
        made.TerminateOnNaN(),
        made.SwapEMAWeights(swap_on_epoch=True),
    ]


def trained(program, folder, scope):
    with scope:
        model, optimizer = program.model(), program.optimizer()
        model.compile(optimizer, **program.compiled())
    found = []
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: found.append(dict(logs))
        )
    ]
    if folder is not None:
        place = folder / type(scope).__name__
        place.mkdir()
        callbacks += _callbacks(place)
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, **program.fit()}
    history = model.fit(callbacks=callbacks, **arguments).history
    outcome = {
        "logs": found,
        "history": history,
        "weights": model.get_weights(),
        "slots": [variable.numpy() for variable in optimizer.variables],
    }
    return outcome | {name: ASKED[name](model, arguments) for name in program.asked}


def _on_batches(model, _):
    y = LABELS[:, None].astype(np.float32)
    return {
        "tested": model.test_on_batch(X[:16], y[:16], return_dict=True),
        "predicted": model.predict_on_batch(X[:5]),
        "trained": model.train_on_batch(X[:5], y[:5], return_dict=True),
    }


def _evaluated(model, arguments):
    # A dataset has shapes that XLA has compiled.
    data = arguments.get("validation_data", (X, Y))
    data = {"x": data} if isinstance(data, tf.data.Dataset) else {"x": X, "y": Y}
    return model.evaluate(**data, verbose=0, return_dict=True)


ASKED = {
    "predictions": lambda model, _: model.predict(X, batch_size=16, verbose=0),
    "scores": _evaluated,
    "on batches": _on_batches,
}


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

    tiny_models.assert_as_on_one_device(
        lambda scope: trained(program, folder, scope), repl
    )


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
    tiny_models.assert_as_on_one_device(program, repl, rtol=2e-5, atol=2e-6)


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
        tiny_models.assert_as_on_one_device(program, repl, rtol=1e-12, atol=1e-13)


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
    tiny_models.assert_as_on_one_device(program, repl, rtol=5e-3, atol=5e-3)


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

    tiny_models.assert_as_on_one_device(
        program, replicator.create("in_graph", num_replicas=2)
    )


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

    tiny_models.assert_as_on_one_device(program, repl)


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
