"""Misuse: every message says what was passed, why it is wrong and what to do."""

import pickle
import re
import types

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors

COUNT, UNKNOWN = errors.DeviceError, errors.UnknownBackendError
CREATED = [
    *(
        (name, {}, UNKNOWN, rf"unknown backend {shown}; use one of async, dtensor, in_")
        for name, shown in (
            ("multi_gpu", ".multi_gpu."),
            *((name, ".*") for name in (None, [], ("in_graph", "single"))),
        )
    ),
    *(
        (name, {option: 2}, TypeError, rf"'{name}' has no option '{option}'; it ha")
        for name, option in (
            ("tf_mirrored", "logical_devices_per_replica"),
            ("multi_worker", "worker_timeout_sec"),
        )
    ),
    *(
        (
            "in_graph",
            {"variable_placement": value},
            ValueError,
            rf"variable_placement {shown} is not one of 'auto', 'shared', 'mirrored'",
        )
        for value, shown in (("host", "'host'"), (tf.zeros([2]), "a '.*' .*"))
    ),
    *(
        (name, {"num_replicas": value}, COUNT, message)
        for name, value, message in (
            ("single", 2, r"'single' cannot run num_replicas=2; it ru"),
            (
                "in_graph",
                0,
                r"'in_graph' cannot run num_replicas=0; it runs 1 to 65536",
            ),
            ("in_graph", "2", r"num_replicas '2' must be an integer"),
            ("in_graph", 10**30, r"cannot run num_replicas=10+; it runs 1 to 65536"),
        )
    ),
    *(
        (
            "in_graph",
            {"num_replicas": 2, "timeout_sec": value},
            ValueError,
            rf"timeout_sec {re.escape(repr(value))} must be a positive number of sec",
        )
        for value in (0, -1.0, float("inf"), float("nan"), True, "10")
    ),
]


@pytest.mark.parametrize(("backend", "options", "kind", "message"), CREATED)
def test_options_are_refused_before_anything_is_made(backend, options, kind, message):
    with pytest.raises(kind, match=message):
        replicator.create(backend, **options)


CALLED = [
    (
        errors.DeviceError,
        r"but got num_replicas=2, devices=None; use InGra",
        lambda: replicator.SingleDeviceReplicator(num_replicas=2),
    ),
    (
        TypeError,
        r"takes a tf.distribute.Strategy, but got 'tf_mirrored'; pass",
        lambda: replicator.StrategyReplicator("tf_mirrored"),
    ),
    (
        TypeError,
        r"PerReplica takes a sequence .* a 'Variable'",
        lambda: replicator.PerReplica(keras.Variable([1.0, 2.0])),
    ),
]


@pytest.mark.parametrize(("kind", "message", "call"), CALLED)
def test_misuse_is_refused_before_anything_is_made(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def test_errors_survive_a_pipe():
    for kind in errors.ReplicatorError.__subclasses__():
        error = pickle.loads(pickle.dumps(kind("why")))

        assert (kind, "why") == (type(error), str(error))


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("single", r"every collective is the identity"),
        ("tf_mirrored", r"plans its own collectives and does not show them"),
        ("in_graph", r"no step has been traced yet; call run\(\) first"),
    ],
)
def test_without_a_plan_explain_says_why(backend, text):
    repl = replicator.create(backend, devices=["CPU:0"])

    assert re.search(text, repl.explain())


def test_a_stock_strategy_out_of_sync_is_named(per_replica):
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    with repl.context():
        weight = tf.Variable([1.0, 2.0], name="weight")
    repl.assert_in_sync()
    copies = repl.strategy.experimental_local_results(weight)
    copies[1].assign([1.0, 3.0])

    with pytest.raises(
        errors.ReplicasOutOfSyncError, match=r"1 mirrored variables differ.*weight"
    ):
        repl.assert_in_sync()


def test_run_in_a_function_of_the_user_or_a_step_is_refused(repl_once):
    """It would count steps when it is traced; a step has one replica."""

    def step():
        return tf.constant(1.0)

    def train():
        return repl_once.run(step)[0]

    for autograph in (True, False):
        with pytest.raises(
            errors.RunContextError, match=r"inside a tf\.function.*num_steps"
        ):
            tf.function(train, autograph=autograph)()
    with pytest.raises(errors.RunContextError, match=r"inside a step function"):
        repl_once.run(train)
    assert 0 == repl_once.num_steps_run


def test_a_distribution_of_keras_is_refused_where_a_step_is_traced():
    repl = replicator.create("single")
    keras.distribution.set_distribution(types.SimpleNamespace())
    try:
        with pytest.raises(
            errors.StrategyError,
            match=r"keras.distribution is set to SimpleNamespace, which Keras accepts "
            r"on TensorFlow and does not do; call keras.distribution.set_distribut",
        ):
            repl.run(lambda: tf.ones([]))
    finally:
        keras.distribution.set_distribution(None)

    assert 1.0 == float(repl.run(lambda: tf.ones([]))[0])
