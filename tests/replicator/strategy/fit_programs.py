"""Programs that end in ``fit``, one per group of features, and what they are asked."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import replicator

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
            "jit_compile": True,
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
    return model.evaluate(X, arguments.get("y", Y), verbose=0, return_dict=True)


ASKED = {
    "predictions": lambda model, _: model.predict(X, batch_size=16, verbose=0),
    "scores": _evaluated,
    "on batches": _on_batches,
}
