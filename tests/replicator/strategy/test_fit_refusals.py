"""What ``fit`` cannot do on replicas is refused, and what it does otherwise is said."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import ReplicatorError, StrategyError

X = np.random.RandomState(0).randn(16, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def repl():
    return replicator.create("in_graph", num_replicas=2)


def _layers():
    return [keras.Input((4,)), keras.layers.Dense(1)]


def _made(repl, kind=keras.Sequential, optimizer="sgd", loss="mse", **options):
    with repl.scope():
        model = kind(_layers())
        model.compile(
            optimizer() if callable(optimizer) else optimizer, loss, **options
        )
    return model


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(self.changed(tape.gradient(loss, weights), x), weights)
        return {"loss": loss}

    def changed(self, grads, x):
        return grads


class OfExamples(OwnStep):
    def changed(self, grads, x):
        factor = tf.sigmoid(x[0, 0])
        return [g * factor for g in grads]  # of its own examples


class Random(OwnStep):
    def changed(self, grads, x):
        return [g + tf.random.normal(g.shape) for g in grads]  # noise


def _fit(kind=keras.Sequential, optimizer="sgd", loss="mse", **options):
    def program(repl):
        _made(repl, kind, optimizer, loss, **options).fit(X, Y, verbose=0)

    return program


def _model_outside(repl):
    model = keras.Sequential(_layers())
    with repl.scope():
        model.compile(keras.optimizers.Adam(), "mse")
    model.fit(X, Y, verbose=0)


def _optimizer_outside(repl):
    _made(repl, optimizer=keras.optimizers.Adam()).fit(X, Y, verbose=0)


def _accumulating(name):
    return lambda: getattr(keras.optimizers, name)(gradient_accumulation_steps=3)


def _on_batch(repl):
    _made(repl, optimizer=_accumulating("Adam")).train_on_batch(X, Y)


def _in_a_loop(repl, optimizer, is_built):
    with repl.scope():
        model = keras.Sequential(_layers())
    weights = model.trainable_variables
    if is_built:
        optimizer.build(weights)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    repl.as_strategy().run(step)


def _loop_that_accumulates(repl):
    with repl.scope():
        optimizer = _accumulating("Lion")()
    _in_a_loop(repl, optimizer, is_built=True)


def _loop_of_an_optimizer_outside(repl):
    _in_a_loop(repl, keras.optimizers.Adam(), is_built=False)


@contextlib.contextmanager
def _in_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _scaled_by_keras(repl):
    with _in_float16():
        model = _made(repl, optimizer=repl.wrap_optimizer(keras.optimizers.SGD(0.01)))
    model.fit(X, Y, verbose=0)


def _compiled_for(call):
    def program(_):
        devices = ["CPU:0", "CPU:1"]
        repl = replicator.create("in_graph", num_replicas=2, devices=devices)
        model = _made(repl, jit_compile=True)
        with repl.scope():
            local = tf.Variable(0.0, trainable=False)

        def step():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            local.assign_add(tf.cast(index, tf.float32))

        @tf.function(jit_compile=True)
        def steps():
            repl.as_strategy().run(step)

        if call == "fit":
            model.fit(X, Y, verbose=0)
        else:
            steps()

    return program


def _evaluated(make_dataset):
    def program(repl):
        with repl.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(loss="mse")
        model.evaluate(make_dataset(), verbose=0)

    return program


def _of_unknown_rank():
    return tf.data.Dataset.from_generator(
        lambda: [(X, Y)], output_types=(tf.float32, tf.float32)
    )


def _nested():
    return tf.data.Dataset.range(6).window(2).map(lambda x: (x, x))


def _instead(name):
    return (
        rf"{name}\(gradient_accumulation_steps=3\).*write "
        rf"repl.wrap_optimizer\({name}\(...\), accumulation_steps=3\)"
    )


_OUTSIDE = r"made outside of scope\(\) is used inside; write `with repl\.scope\(\):`"
_ONE_DEVICE = r"variables are on .*CPU:0, .*CPU:1, but XLA compiles .* for one device"
_OF_ONE_REPLICA = r"a step of fit\(\) at .*{} computes with gradients"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_fit(run_eagerly=True), r"run_eagerly=True, .* remove run_eag"),
        (
            _fit(loss=keras.losses.MeanSquaredError(reduction="sum")),
            r"MeanSquaredError\(reduction=\"sum\"\)",
        ),
        (
            _model_outside,
            r"in scope\(\), but '.*', which it trains, outside, .*; make the model",
        ),
        (_optimizer_outside, _OUTSIDE),
        (_loop_of_an_optimizer_outside, _OUTSIDE),
        (_fit(OfExamples), _OF_ONE_REPLICA.format("# of its own examples")),
        (_fit(Random), _OF_ONE_REPLICA.format("# noise")),
        (_fit(optimizer=_accumulating("SGD")), _instead("SGD")),
        (_fit(OwnStep, _accumulating("Adafactor")), _instead("Adafactor")),
        (_on_batch, _instead("Adam")),
        (_loop_that_accumulates, _instead("Lion")),
        (
            _scaled_by_keras,
            r'loss_scale="dynamic"\), \.\.\., auto_scale_loss=False\)',
        ),
        (_compiled_for("fit"), _ONE_DEVICE),
        (_compiled_for("function"), _ONE_DEVICE),
        (
            _evaluated(_of_unknown_rank),
            r"does not say how many dimensions .*output_signature=",
        ),
        (
            _evaluated(_nested),
            r"yields DatasetSpec.*, which has no examples .*map it to a tensor",
        ),
    ],
)
def test_what_fit_cannot_do_is_refused(repl, program, message):
    error = ReplicatorError if "computes with" in message else StrategyError
    with pytest.raises(error, match=message):
        program(repl)


@pytest.mark.parametrize("is_own", [True, False])
def test_batch_norm_of_each_replica_is_said(repl, is_own, recwarn):
    norm = keras.layers.BatchNormalization
    norm = norm if is_own else replicator.CrossReplicaBatchNormalization
    with repl.scope():
        model = keras.Sequential([keras.Input((4,)), norm(name="norm")])
        model.compile("sgd", "mse")
    model.fit(X, X, verbose=0)

    said = [str(warning.message) for warning in recwarn.list]
    assert is_own == any(
        "'norm' of Sequential" in text and "synchronized=True" in text for text in said
    )
