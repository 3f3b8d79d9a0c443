"""Steps that ended count, whatever ends the dispatch that they are in."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import replicator

AGGREGATION = tf.VariableAggregation
KINDS = {
    "mean": AGGREGATION.MEAN,
    "sum": AGGREGATION.SUM,
    "first": AGGREGATION.ONLY_FIRST_REPLICA,
}
READ_AS = {"mean": np.mean, "sum": np.sum, "first": lambda copies, axis: copies[0]}
SIZE = 3
PLACES = {
    "one replica": ("single", 1, {}),
    "shared": ("in_graph", 2, {"variable_placement": "shared"}),
    "copies": ("in_graph", 3, {"variable_placement": "mirrored"}),
}


def _once(variable, x):
    variable.assign(variable * 0.5 + x)


def _in_a_branch(variable, x):
    tf.cond(
        tf.reduce_sum(x) > -100.0,
        lambda: variable.assign(variable * 0.5 + x),
        lambda: variable + 0.0,
    )


def _in_two_writes(variable, x):
    variable.assign(variable * 0.5)
    variable.assign_add(x)


class Training:
    """Steps with state of every kind; what is not a number in a batch ends one."""

    def __init__(self, repl):
        self.repl = repl
        with repl.context():
            self.weight = tf.Variable(tf.ones([SIZE]))
            self.count = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.norm = keras.layers.BatchNormalization(momentum=0.5)
            self.norm.build([None, SIZE])
            self.local = {
                name: tf.Variable(
                    tf.zeros([SIZE]),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=aggregation,
                )
                for name, aggregation in KINDS.items()
            }
            self.optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))
            self.optimizer.build([self.weight])
        self.steps = [
            self._step(write) for write in (_once, _in_a_branch, _in_two_writes)
        ]
        self.start = [variable.numpy() for variable in self.state()]

    def _step(self, write):
        def step(x):
            with tf.control_dependencies([tf.debugging.check_numerics(x, "injected")]):
                whole = replicator.all_sum(tf.identity(x))
            with tf.control_dependencies([whole]):  # nothing is written before
                x = tf.identity(x)
                self.norm(tf.stack([x, 3.0 * x]), training=True)
                for variable in self.local.values():
                    write(variable, x)
                self.count.assign_add(1)
                self.optimizer.apply_gradients([(x, self.weight)])
            return x

        return step

    def state(self):
        return [
            self.weight,
            self.count,
            *self.local.values(),
            *self.optimizer.variables,
            self.norm.moving_mean,
            self.norm.moving_variance,
        ]

    def reset(self):
        for variable, value in zip(self.state(), self.start, strict=True):
            variable.assign(value)

    def run(self, which, rows, num_steps):
        inputs = self.repl.make_input_iterator(
            lambda _: tf.data.Dataset.from_tensor_slices(rows),
            replicator.InputReplicationMode.SINGLE,
        )
        self.repl.run(self.steps[which], inputs, num_steps=num_steps)


class Plain:
    def __init__(self, num_replicas):
        self.copies = {name: np.zeros([num_replicas, SIZE]) for name in KINDS}
        self.mean = np.zeros([num_replicas, SIZE])
        self.variance = np.ones([num_replicas, SIZE])
        self.weight = tf.Variable(tf.ones([SIZE]))
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build([self.weight])

    def step(self, xs):
        for name in KINDS:
            self.copies[name] = self.copies[name] * 0.5 + xs
        self.mean = self.mean * 0.5 + xs
        self.variance = self.variance * 0.5 + xs**2 * 0.5
        gradient = tf.constant(xs.mean(axis=0), tf.float32)
        self.optimizer.apply_gradients([(gradient, self.weight)])

    def state(self):
        return [
            self.weight,
            self.optimizer.iterations.numpy(),
            *(READ_AS[name](self.copies[name], axis=0) for name in KINDS),
            *self.optimizer.variables,
            self.mean.mean(axis=0),
            self.variance.mean(axis=0),
        ]


DISPATCHES = st.lists(
    st.tuples(
        st.integers(0, 2),  # which step
        st.integers(1, 3),  # k
        st.integers(0, 3),  # j: steps that end
        st.sampled_from(["data", "failure"]),
        st.integers(0, 10**6),  # of the numbers, and of the replica that fails
    ),
    min_size=2,
    max_size=3,
)


@pytest.fixture(params=PLACES, scope="module")
def training(request):
    backend, num_replicas, options = PLACES[request.param]
    devices = [f"CPU:{index}" for index in range(num_replicas)]
    return Training(
        replicator.create(
            backend, num_replicas=num_replicas, devices=devices, **options
        )
    )


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(dispatches=DISPATCHES)
def test_what_steps_have_done_stays_done(training, dispatches):
    """Dispatches end in success, at the end of the data, or with a failure."""
    repl = training.repl
    training.reset()
    plain, done = Plain(repl.num_replicas), repl.num_steps_run
    for which, num_steps, most, end, seed in dispatches:
        finished = min(most, num_steps)
        draw = np.random.default_rng(seed)
        whole = draw.integers(-8, 9, [num_steps, repl.num_replicas, SIZE]) / 8
        rows = whole.reshape([-1, SIZE]).astype(np.float32)
        if finished == num_steps:
            training.run(which, rows, num_steps)
        else:
            first = finished * repl.num_replicas + draw.integers(repl.num_replicas)
            error = tf.errors.OutOfRangeError
            if end == "failure":
                rows[first], error = np.nan, tf.errors.InvalidArgumentError
            else:
                rows = rows[:first]
            with pytest.raises(error):
                training.run(which, rows, num_steps)
        for xs in whole[:finished]:
            plain.step(xs)
        done += finished
        assert done == repl.num_steps_run
        for variable, value in zip(training.state(), plain.state(), strict=True):
            np.testing.assert_allclose(variable.numpy(), value, 1e-5, 1e-6)
        repl.assert_in_sync()
