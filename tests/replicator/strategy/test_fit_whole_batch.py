"""What ``fit`` derives from a batch is derived from all: clips, logs, accumulation."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.errors import ReplicatorError, StrategyError

NUM_EXAMPLES = 19  # a last batch of 3 examples, which two replicas cannot share equally


def _data():
    numbers = np.random.RandomState(0)
    x = numbers.randn(NUM_EXAMPLES, 4).astype(np.float32)
    return x, 5.0 * x.sum(axis=1, keepdims=True)


X, Y = _data()


class _OwnStep(keras.Sequential):
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        x, y = data[:2]
        loss, grads = self.gradients(x, y)
        logs = {"loss": loss}
        grads = self.changed(grads, x, logs)
        self.optimizer.apply(grads, self.trainable_variables)
        return logs


class Clipping(_OwnStep):
    """Clips by the norm of all, and says what it was."""

    def changed(self, grads, x, logs):
        grads, logs["norm"] = tf.clip_by_global_norm(grads, 1.0)
        return grads


class Normalizing(_OwnStep):
    """Divides by norms, and leaves the last gradient as it is."""

    def changed(self, grads, x, logs):
        logs["norm"] = tf.norm(grads[0])
        return [*(g / (tf.norm(g) + 1e-6) for g in grads[:-1]), grads[-1]]


class OfExamples(_OwnStep):
    def changed(self, grads, x, logs):
        factor = tf.sigmoid(x[0, 0])
        return [g * factor for g in grads]  # of its own examples


class Random(_OwnStep):
    def changed(self, grads, x, logs):
        return [g + tf.random.normal(g.shape) for g in grads]  # noise


def _trained(kind, scope, **options):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = kind([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9, **options), "mse")
    found = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(dict(logs))
    )
    fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(X, Y, callbacks=[log], **fit)
    return model.get_weights(), found


@pytest.mark.parametrize(
    "placement", ["shared", pytest.param("mirrored", marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Clipping, {}),
        (keras.Sequential, {"global_clipnorm": 1.0}),
        pytest.param(Normalizing, {}, marks=pytest.mark.full),
        pytest.param(keras.Sequential, {"clipnorm": 0.5}, marks=pytest.mark.full),
        pytest.param(keras.Sequential, {"clipvalue": 0.5}, marks=pytest.mark.full),
    ],
)
def test_gradients_are_clipped_as_on_one_device(kind, options, placement):
    """By the norm of the mean, of batches of any size; the norm in the logs is that."""
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)

    weights, logs = _trained(kind, contextlib.nullcontext(), **options)
    weights_of_two, logs_of_two = _trained(kind, repl.scope(), **options)

    for one, two in zip(weights, weights_of_two, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    for one, two in zip(logs, logs_of_two, strict=True):
        assert one == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "line"), [(OfExamples, "# of its own examples"), (Random, "# noise")]
)
def test_a_change_that_is_of_one_replica_is_refused_with_its_line(kind, line):
    """Its mean over replicas would not be what one device makes of the batch."""
    repl = replicator.create("in_graph", num_replicas=2)

    with pytest.raises(
        ReplicatorError, match=rf"a step of fit\(\) at .*{line} computes with gradients"
    ):
        _trained(kind, repl.scope())


class OfWords(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(10, 4)
        self.dense = keras.layers.Dense(1)
        self.is_dense = False

    def call(self, words):
        return self.dense(tf.reduce_mean(self.embed(words), axis=1))

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        grads = tape.gradient(loss, self.trainable_variables)
        if self.is_dense:
            grads = [tf.convert_to_tensor(g) for g in grads]
        grads, _ = tf.clip_by_global_norm(grads, 0.1)  # of rows
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("is_dense", [False, True])
def test_sparse_gradients_are_clipped_as_on_one_device(is_dense):
    """By the norm of the rows of all examples, or by that of the dense gradient."""
    words = np.arange(20).reshape(5, 4) % 7
    weights = []
    for scope in (
        contextlib.nullcontext(),
        replicator.create("in_graph", num_replicas=2).scope(),
    ):
        keras.utils.set_random_seed(1)
        with scope:
            model = OfWords()
            model.is_dense = is_dense
            model.compile(keras.optimizers.SGD(0.5))
        model.fit(words, Y[:5], batch_size=5, shuffle=False, verbose=0)
        weights.append(model.get_weights())

    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


class Superset(keras.Sequential):
    def train_step(self, data):
        return {**super().train_step(data), "target": tf.reduce_mean(data[1])}


@pytest.mark.parametrize("kind", [keras.Sequential, Superset])
def test_logs_of_every_batch_are_those_of_one_device(kind):
    """After batches that replicas share unequally, of metrics that are no means too."""
    outcomes = []
    for scope in (
        contextlib.nullcontext(),
        replicator.create("in_graph", num_replicas=2).scope(),
    ):
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        with scope:
            model = kind([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
            metrics = ["mae", keras.metrics.Recall(), keras.metrics.TruePositives()]
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics)
        found = []
        log = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, found=found: found.append(dict(logs))
        )
        data = tf.data.Dataset.from_tensor_slices((X, (Y > 0) + 0.0))
        # A small batch in the middle, after which another one follows.
        batches = data.take(8).batch(8).concatenate(data.skip(8).batch(3))
        history = model.fit(batches, epochs=2, verbose=0, callbacks=[log]).history
        outcomes.append([*found, *({n: v[1]} for n, v in history.items())])

    assert 12 < len(outcomes[0])
    for one, two in zip(*outcomes, strict=True):
        assert one == pytest.approx(two, rel=1e-5)


EXAMPLES, TARGETS = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def _fit(model, strategy):
    del strategy
    model.fit(EXAMPLES, TARGETS, verbose=0)


def _batch(model, strategy):
    del strategy
    model.train_on_batch(EXAMPLES, TARGETS)


def _loop(model, strategy):
    weights, optimizer = model.trainable_variables, model.optimizer

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(EXAMPLES) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    strategy.run(step)


@pytest.mark.parametrize(
    ("name", "train", "kind"),
    [
        ("SGD", _fit, keras.Sequential),
        ("Adam", _batch, keras.Sequential),
        ("Lion", _loop, keras.Sequential),
        ("Adafactor", _fit, OwnStep),
    ],
)
def test_the_message_names_the_option_that_does(in_graph, name, train, kind):
    """Keras joins gradients in a branch, where replicas cannot communicate."""
    with in_graph.scope():
        model = kind([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = getattr(keras.optimizers, name)(gradient_accumulation_steps=3)
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)

    message = (
        rf"{name}\(gradient_accumulation_steps=3\).*write "
        rf"repl.wrap_optimizer\({name}\(...\), accumulation_steps=3\)"
    )
    with pytest.raises(StrategyError, match=message):
        train(model, in_graph.as_strategy())


@pytest.mark.parametrize("wrap", ["of Keras", "of the wrapper"])
def test_what_the_message_says_trains_as_one_device(in_graph, wrap):
    """By Keras' own option below ``wrap_optimizer``, or by the wrapper's."""

    def kernel(repl):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        if repl is None:
            optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        elif wrap == "of Keras":
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
            )
        else:
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1), accumulation_steps=2
            )
        model.compile(optimizer, "mse")
        model.fit(EXAMPLES, TARGETS, batch_size=2, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()[0]

    with in_graph.scope():
        found = kernel(in_graph)
    np.testing.assert_allclose(found, kernel(None), rtol=1e-5)
