"""Metrics of ``fit`` that are given, or make, numbers of a whole batch."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

NUM_EXAMPLES = 21  # a last batch of 5 examples, which two replicas cannot share equally
_NUMBERS = np.random.RandomState(0)
X = _NUMBERS.randn(NUM_EXAMPLES, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def recall(y, y_pred):
    """A ratio of sums, as it is often written."""
    hits = tf.reduce_sum(tf.cast((y > 0) & (y_pred > 0), tf.float32))
    return hits / (tf.reduce_sum(tf.cast(y > 0, tf.float32)) + 1.0)


def counted(y, y_pred):
    """The same in integers."""
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
    """The largest error so far, which is no sum."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name)
        self.is_of_all = bool(options)
        self.value = self.add_variable((), "zeros", name="value", **options)

    def update_state(self, y, y_pred, sample_weight=None):
        errors = tf.abs(y - y_pred)
        if self.is_of_all:
            replica = tf.distribute.get_replica_context()
            errors = replica.all_gather(errors, axis=0) if replica else errors
        self.value.assign(tf.maximum(self.value, tf.reduce_max(errors)))  # here

    def result(self):
        return self.value


class OwnStep(keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self.total = keras.metrics.Sum(name="total")
        self.mean = keras.metrics.Mean(name="mean")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.total.update_state(loss)
        self.mean.update_state(loss)
        self.mean.update_state(tf.reduce_mean(y_pred))
        logs = self.compute_metrics(x, y, y_pred)
        return {**logs, "own loss": loss, "mean": tf.reduce_mean(y_pred)}


def _layers():
    return [keras.Input((4,)), keras.layers.Dense(1)]


def _trained(kind, metrics, scope, data):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = kind(_layers())
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=metrics())
    found = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(dict(logs))
    )
    history = model.fit(data, epochs=2, verbose=0, callbacks=[log]).history
    scores = model.evaluate(data, verbose=0, return_dict=True)
    return [*found, *({n: v[i] for n, v in history.items()} for i in range(2)), scores]


def _metrics():
    return [recall, counted, "mae", "AUC", PlainSum()]


def _of_all():
    return [Largest(aggregation="only_first_replica")]


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize(
    ("kind", "metrics"),
    [(keras.Sequential, _metrics), (OwnStep, _metrics), (keras.Sequential, _of_all)],
)
def test_numbers_of_a_batch_are_those_of_one_device(kind, metrics, drop_remainder):
    """In every batch, with sizes that are known while tracing, or not."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder)
    two = replicator.create("in_graph", num_replicas=2)

    alone = _trained(kind, metrics, contextlib.nullcontext(), data)
    both = _trained(kind, metrics, two.scope(), data)

    for one, other in zip(alone, both, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
