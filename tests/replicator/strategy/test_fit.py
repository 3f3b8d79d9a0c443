"""``fit`` of Keras on two replicas equals ``fit`` on one device.

One program per group of features: what differs is named by the entry that differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator._tf import distribute as _tf_distribute
from replicator.errors import StrategyError
from replicator.strategy import datasets

TOLERANCE = 1e-6  # relative: sums of float32 in another order
NUM_EXAMPLES = 37  # a last batch of 5 examples, which two replicas cannot share equally


def _data():
    numbers = np.random.RandomState(0)
    x = numbers.randn(NUM_EXAMPLES, 4).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


X, Y = _data()
LABELS = (Y[:, 0] > 0).astype(np.int32)
WEIGHTS = np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32)


class Pieces(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index * 16 : index * 16 + 16], Y[index * 16 : index * 16 + 16]


class OwnSteps(keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return 2.0 * super().compute_loss(*args, **kwargs)

    def train_step(self, data):
        """The step of Keras' guide, with a penalty."""
        x, y = data[:2]  # weights of examples may follow
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(grads, self.trainable_variables, strict=True)
        )
        return self.compute_metrics(x, y, y_pred)


def _batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def _layers(outputs=1, activation=None):
    return [
        keras.Input((4,)),
        keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
        keras.layers.Dense(outputs, activation=activation),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    model: Any = lambda: keras.Sequential(_layers())
    optimizer: Any = lambda: keras.optimizers.Adam(0.01)
    compiled: Any = lambda: {"loss": "mse", "metrics": ["mae"]}
    fit: Any = lambda: {"x": X, "y": Y, "batch_size": 16}


def _callbacks(folder):
    c = keras.callbacks
    folder.mkdir()
    return [
        c.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
        c.BackupAndRestore(folder / "backup"),
        c.EarlyStopping(patience=2),
        c.ReduceLROnPlateau(patience=1, min_delta=10.0),
        c.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        c.CSVLogger(folder / "log.csv"),
        c.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        c.TerminateOnNaN(),
        c.SwapEMAWeights(swap_on_epoch=True),
    ]


PROGRAMS = {
    "arrays, validation data, callbacks": Program(
        optimizer=lambda: keras.optimizers.AdamW(0.01, use_ema=True),
        fit=lambda: {
            "x": X,
            "y": Y,
            "batch_size": 16,
            "epochs": 4,
            "validation_data": (X[:21], Y[:21]),
        },
    ),
    "a dataset, steps per execution": Program(
        optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        compiled=lambda: {"loss": "mse", "metrics": ["mae"], "steps_per_execution": 2},
        fit=lambda: {"x": _batches(), "validation_data": _batches()},
    ),
    "a split, sample weights, weighted metrics": Program(
        compiled=lambda: {"loss": "mse", "weighted_metrics": ["mae"]},
        fit=lambda: {
            "x": X,
            "y": Y,
            "batch_size": 16,
            "sample_weight": WEIGHTS,
            "validation_split": 0.3,
        },
    ),
    "class weights, counting metrics": Program(
        model=lambda: keras.Sequential(_layers(1, "sigmoid")),
        compiled=lambda: {
            "loss": keras.losses.BinaryCrossentropy(),
            "metrics": ["AUC", "accuracy", keras.metrics.TruePositives()],
        },
        fit=lambda: {
            "x": X,
            "y": LABELS,
            "batch_size": 16,
            "class_weight": {0: 1, 1: 3},
        },
    ),
    "an endless dataset, steps per epoch, XLA": Program(
        compiled=lambda: {"loss": "mse", "jit_compile": True},
        fit=lambda: {"x": _batches().repeat(), "steps_per_epoch": 4},
    ),
    "pieces in Python, own steps and loss": Program(
        model=lambda: OwnSteps(_layers()), fit=lambda: {"x": Pieces()}
    ),
}


def trained(program, scope, folder=None):
    keras.utils.clear_session()  # names of layers and metrics
    keras.utils.set_random_seed(1)
    with scope:
        model = program.model()
        model.compile(program.optimizer(), **program.compiled())
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, **program.fit()}
    callbacks = _callbacks(folder) if folder else None
    history = model.fit(callbacks=callbacks, **arguments).history
    outcome = {name: np.array(values) for name, values in history.items()}
    outcome |= {w.path: w.numpy() for w in model.weights}
    slots = enumerate(model.optimizer.variables)
    outcome |= {f"slot {i}": variable.numpy() for i, variable in slots}
    outcome["predictions"] = model.predict(X, batch_size=16, verbose=0)
    scores = model.evaluate(X, program.fit().get("y", Y)[:NUM_EXAMPLES], verbose=0)
    outcome["scores"] = np.array(scores)
    # Of a fresh epoch: batches one by one.
    outcome["on batch"] = np.array(model.test_on_batch(X[:16], LABELS[:16, None]))
    outcome["predicted"] = model.predict_on_batch(X[:5])
    outcome["trained"] = np.array(model.train_on_batch(X[:5], LABELS[:5, None]))
    return {k.partition("/")[2] if "/" in k else k: v for k, v in outcome.items()}


# Mirrored copies have the first of them in every run.
SLOW = ("arrays", "class weights", "an endless dataset")


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        *[
            pytest.param(
                name, "shared", marks=[pytest.mark.full] * name.startswith(SLOW)
            )
            for name in PROGRAMS
        ],
        *[
            pytest.param(name, "mirrored", marks=[] if i == 0 else pytest.mark.full)
            for i, name in enumerate(PROGRAMS)
            if "XLA" not in name  # which compiles for one device
        ],
    ],
)
def test_fit_equals_one_device(name, placement, tmp_path):
    """Histories, weights, optimizer state, predictions and scores."""
    program = PROGRAMS[name]
    folder = tmp_path if "callbacks" in name else None
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)

    alone = trained(program, contextlib.nullcontext(), folder and folder / "alone")
    both = trained(program, repl.scope(), folder and folder / "both")

    assert list(alone) == list(both)
    for key, expected in alone.items():
        np.testing.assert_allclose(
            both[key], expected, rtol=1e-5, atol=TOLERANCE, err_msg=key
        )


def test_scores_before_training_do_not_change_it():
    """``evaluate`` and ``predict`` first, then ``fit`` with statistics that differ."""
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


def test_steps_of_fit_are_explained():
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.scope():
        model = keras.Sequential(_layers())
        model.compile("sgd", "mse")
    model.train_on_batch(X, Y)

    assert "train_step, 2 replicas" in repl.explain()
    assert "all_reduce" in repl.explain()


def test_the_single_backend_fits_like_keras():
    """The way to debug a program: the same two lines."""
    program = Program()

    alone = trained(program, contextlib.nullcontext())
    single = trained(program, replicator.create("single").scope())

    for key, expected in alone.items():
        np.testing.assert_allclose(single[key], expected, rtol=1e-5, atol=TOLERANCE)


@contextlib.contextmanager
def _in_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


# Of float16, of which products of two halves of a batch differ.
TOLERANCE_16 = 5e-3


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_the_loss_scale_of_keras_skips_the_same_updates_on_all_replicas(placement):
    """An example of one replica alone overflows, once in each of two epochs."""
    outcomes = []
    x = X.copy()
    x[18] = np.inf  # in the second batch, of the first replica
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)
    for scope in (contextlib.nullcontext(), repl.scope()):
        keras.utils.set_random_seed(1)
        with _in_float16(), scope:
            model = keras.Sequential(_layers())
            scaler = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=64.0
            )
            model.compile(scaler, "mse")
        model.fit(x, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        updates = int(scaler.inner_optimizer.iterations.numpy())
        scale = float(scaler.dynamic_scale.numpy())
        outcomes.append((updates, scale, model.get_weights()))
    (alone, scale_alone, weights_alone), (both, scale_both, weights_both) = outcomes

    assert (4, 16.0) == (alone, scale_alone) == (both, scale_both)
    for one, two in zip(weights_alone, weights_both, strict=True):
        np.testing.assert_allclose(two, one, rtol=TOLERANCE_16, atol=TOLERANCE_16)


def test_a_wrapped_optimizer_scales_the_loss_itself():
    """Keras would put it into a branch; the message says what to write."""
    repl = replicator.create("in_graph", num_replicas=2)
    for options, compiled, message in (
        ({}, {}, r'loss_scale="dynamic"\), \.\.\., auto_scale_loss=False\)'),
        ({"loss_scale": "dynamic"}, {"auto_scale_loss": False}, None),
    ):
        with _in_float16(), repl.scope():
            model = keras.Sequential(_layers())
            optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.01), **options)
            model.compile(optimizer, "mse", **compiled)
        if message is None:
            losses = model.fit(X, Y, epochs=2, shuffle=False, verbose=0).history
            assert losses["loss"][1] < losses["loss"][0]
        else:
            with pytest.raises(StrategyError, match=message):
                model.fit(X, Y, verbose=0)


class OfOneDevice(keras.Sequential):
    """A step that knows nothing of replicas, as published programs have it."""

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


@pytest.mark.parametrize(
    ("is_wrapped", "num_examples"), [(False, 17), (False, 22), (True, 22)]
)
def test_a_step_written_for_one_device_is_that_of_one_device(is_wrapped, num_examples):
    """Weights and logs, with a last batch that is smaller, or leaves a replica none."""
    outcomes = []
    repl = replicator.create("in_graph", num_replicas=2)
    for scope in (contextlib.nullcontext(), repl.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = OfOneDevice(_layers())
            optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
            if is_wrapped and outcomes:
                optimizer = repl.wrap_optimizer(optimizer)
            model.compile(optimizer)
        x, y = X[:num_examples], Y[:num_examples]
        history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history
        outcomes.append([*history["loss"], *history["error"], *model.get_weights()])

    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=TOLERANCE)


def test_a_fit_that_would_run_eagerly_is_refused():
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.scope():
        made = keras.Sequential(_layers())
        made.compile("sgd", "mse", run_eagerly=True)

    with pytest.raises(StrategyError, match=r"run_eagerly=True, .* remove run_eag"):
        made.fit(X, Y, verbose=0)


def _model_outside(repl):
    model = keras.Sequential(_layers())
    with repl.scope():
        model.compile(keras.optimizers.Adam(), "mse")
    return model


def _optimizer_outside(repl):
    optimizer = keras.optimizers.Adam()
    with repl.scope():
        model = keras.Sequential(_layers())
        model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            _model_outside,
            r"in scope\(\), but '.*', which it trains, outside, .*; make the model",
        ),
        (
            _optimizer_outside,
            r"made outside of scope\(\) is used inside; write `with repl\.scope\(\):`",
        ),
    ],
)
def test_what_was_made_outside_of_the_scope_is_named(make, message):
    """An optimizer with state, or the model, of which Keras would say nothing."""
    model = make(replicator.create("in_graph", num_replicas=2))

    with pytest.raises(StrategyError, match=message):
        model.fit(X, Y, verbose=0)


def test_a_model_that_is_compiled_again_trains_as_it_was_compiled_last():
    """It trained with the first optimizer, and only what was trainable then."""
    outcomes = []
    repl = replicator.create("in_graph", num_replicas=2)
    for scope in (contextlib.nullcontext(), repl.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential(_layers())
            model.layers[0].trainable = False
            model.compile(keras.optimizers.SGD(0.1), "mse")
            model.fit(X, Y, batch_size=16, verbose=0)
            model.layers[0].trainable = True
            model.compile(keras.optimizers.SGD(0.01), "mse")
        history = model.fit(X, Y, batch_size=16, verbose=0).history
        outcomes.append([*history["loss"], *model.get_weights()])

    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=TOLERANCE)


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.parametrize(
    ("is_fit", "has_slots"), [(True, False), (False, False), (False, True)]
)
def test_an_optimizer_that_was_made_outside_and_makes_no_slots_trains_alike(
    placement, is_fit, has_slots
):
    """``fit``, and a loop of one's own; without slots, or with those made before."""
    outcomes = []
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)
    for strategy in (tf.distribute.get_strategy(), repl.as_strategy()):
        keras.utils.set_random_seed(1)
        momentum = 0.9 if has_slots else 0.0
        optimizer = keras.optimizers.SGD(0.05, momentum, weight_decay=0.01)
        with strategy.scope():
            model = keras.Sequential(_layers())
            model.compile(optimizer, "mse")
        if has_slots:
            optimizer.build(model.trainable_variables)
        if is_fit:
            model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        else:
            _loop(strategy, model, optimizer)
        outcomes.append([int(optimizer.iterations.numpy()), *model.get_weights()])

    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=TOLERANCE)


def _loop(strategy, model, optimizer):
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

    for inputs in strategy.experimental_distribute_dataset(_batches().take(2)):
        train(inputs)


def test_an_optimizer_whose_slots_are_to_be_made_outside_is_named_in_a_loop():
    """Keras would make them for one device, in the first update."""
    strategy = replicator.create("in_graph", num_replicas=2).as_strategy()
    optimizer = keras.optimizers.Adam()
    with strategy.scope():
        model = keras.Sequential(_layers())

    with pytest.raises(StrategyError, match=r"outside of scope\(\) is used inside"):
        _loop(strategy, model, optimizer)


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.parametrize("call", ["fit", "function"])
def test_xla_around_replicas_of_several_devices_is_refused(placement, call):
    """In one line that names the devices; inside a step it compiles a part."""
    repl = replicator.create(
        "in_graph",
        num_replicas=2,
        devices=["CPU:0", "CPU:1"],
        variable_placement=placement,
    )
    with repl.scope():
        model = keras.Sequential(_layers())
        model.compile("sgd", "mse", jit_compile=True)
        local = tf.Variable(0.0, trainable=False)

    def step():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        local.assign_add(tf.cast(index, tf.float32))

    @tf.function(jit_compile=True)
    def steps():
        repl.as_strategy().run(step)

    calls = {
        "fit": lambda: model.fit(X, Y, batch_size=16, verbose=0),
        "function": steps,
    }
    message = r"variables are on .*CPU:0, .*CPU:1, but XLA compiles .* for one device"
    with pytest.raises(StrategyError, match=message):
        calls[call]()


def test_a_strategy_finds_the_callbacks_of_fit(monkeypatch):
    """Keras passes them to nothing that a strategy has."""
    seen = []
    split = datasets.split

    def recorded(*args):
        seen.append(_tf_distribute.callbacks_of_fit())
        return split(*args)

    monkeypatch.setattr(datasets, "split", recorded)
    with replicator.create("single").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback()
    x = np.ones([4, 4], np.float32)
    model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
    model.evaluate(x, x[:, :1], verbose=0)

    assert [[callback], None] == seen
