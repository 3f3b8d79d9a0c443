"""Misuse: every message says what was passed, why it is wrong and what to do."""

from __future__ import annotations

import copy
import pickle
import re

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors, registry


def test_an_unknown_backend_lists_those_there_are():
    """Sorted, as backend_names() gives them."""
    with pytest.raises(
        errors.UnknownBackendError,
        match="unknown backend 'multi_gpu'; use one of "
        + ", ".join(sorted(replicator.backend_names())),
    ):
        replicator.create("multi_gpu")


@pytest.mark.parametrize(
    ("backend", "num_replicas", "message"),
    [
        ("single", 2, r"'single' cannot run num_replicas=2; it runs 1$"),
        ("in_graph", 0, r"'in_graph' cannot run num_replicas=0; it runs 1 to 65536"),
        ("in_graph", -1, r"cannot run num_replicas=-1"),
        ("in_graph", 2.0, r"num_replicas 2.0 must be an integer"),
        ("in_graph", True, r"num_replicas True must be an integer"),
        ("in_graph", "2", r"num_replicas '2' must be an integer"),
        ("in_graph", 10**30, r"cannot run num_replicas=10+; it runs 1 to 65536"),
    ],
)
def test_numbers_of_replicas_that_a_backend_cannot_run(backend, num_replicas, message):
    """The message has the number and the range."""
    with pytest.raises(errors.DeviceError, match=message):
        registry.create(backend, num_replicas=num_replicas)


def test_options_that_a_backend_does_not_have_list_those_it_has():
    """Such as model parallelism on a stock strategy."""
    with pytest.raises(
        TypeError,
        match=r"'tf_mirrored' has no option 'logical_devices_per_replica'; it has 'dev",
    ):
        replicator.create("tf_mirrored", logical_devices_per_replica=2)


def test_a_limited_backend_gives_its_range(monkeypatch):
    """Also where the limit is above one."""
    info = registry.BACKENDS["single"]
    limited = type(info)(
        name="single",
        target=info.target,
        description=info.description,
        kind=info.kind,
        max_replicas=3,
    )
    monkeypatch.setitem(registry.BACKENDS, "single", limited)

    with pytest.raises(errors.DeviceError, match=r"num_replicas=4; it runs 1 to 3"):
        registry.create("single", num_replicas=4)


def test_the_single_device_has_one_replica():
    """Made by its class, it points to the replicator for several."""
    with pytest.raises(
        errors.DeviceError, match=r"but got num_replicas=2, devices=None; use InGra"
    ):
        replicator.SingleDeviceReplicator(num_replicas=2)


def test_unknown_placements_of_variables_list_those_there_are():
    """The message quotes all three."""
    with pytest.raises(
        ValueError, match=r"'host' is not one of 'auto', 'shared', 'mirrored'"
    ):
        replicator.create("in_graph", variable_placement="host")


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "10"])
def test_a_time_limit_is_a_positive_number(value):
    """It would end every step at once, or none."""
    expected = rf"timeout_sec {re.escape(repr(value))} must be a positive number of sec"

    with pytest.raises(ValueError, match=expected):
        replicator.create("in_graph", num_replicas=2, timeout_sec=value)


@pytest.mark.parametrize("num_steps", [0, -1, 1.0, True, "2", 10**30])
def test_numbers_of_steps_must_be_positive_integers(num_steps):
    """Before anything is traced."""
    repl = replicator.create("single")

    with pytest.raises(ValueError, match=r"num_steps .* must be an integer of at leas"):
        repl.run(lambda: None, num_steps=num_steps)


@pytest.mark.parametrize("backend", [None, [], tf.constant(["in_graph", "single"])])
def test_a_backend_is_a_name(backend):
    """What cannot be looked up either."""
    with pytest.raises(
        errors.UnknownBackendError, match=r"unknown backend .*; use one"
    ):
        registry.create(backend)


def test_the_placement_of_variables_is_a_name():
    """A tensor would be compared with each."""
    with pytest.raises(
        ValueError, match=r"variable_placement a '.*' .* is not one of 'au"
    ):
        replicator.create("in_graph", variable_placement=tf.zeros([2]))


@pytest.mark.parametrize("op", [tf.zeros([2]), None, "median"])
def test_a_reduction_is_a_name(in_graph, op):
    """In a step and outside."""
    values = replicator.PerReplica([1.0] * in_graph.num_replicas)
    message = r"unknown reduction .*; use one of 'sum', 'mean', 'min', 'max'"

    with pytest.raises(ValueError, match=message):
        in_graph.reduce(op, values)
    with pytest.raises(ValueError, match=message):
        in_graph.run(lambda: replicator.all_reduce(1.0, op))


def test_a_strategy_is_one_of_tensorflow():
    """Not the name of a backend."""
    with pytest.raises(
        TypeError, match=r"takes a tf.distribute.Strategy, but got 'tf_mirrored'; pass"
    ):
        replicator.StrategyReplicator("tf_mirrored")


def test_values_of_replicas_are_a_sequence():
    """A variable has items, but no end."""
    with pytest.raises(TypeError, match=r"PerReplica takes a sequence .* a 'Variable'"):
        replicator.PerReplica(keras.Variable([1.0, 2.0]))


def test_values_of_different_shapes_are_refused(in_graph):
    """A collective could not combine them."""
    values = replicator.PerReplica([tf.zeros([2]), tf.zeros([3])])

    with pytest.raises(ValueError, match=r"inputs differ between replicas in shape or"):
        in_graph.run(tf.identity, values)


def test_reducing_by_an_unknown_operation_lists_what_there_is():
    """The same message as inside a step."""
    repl = replicator.create("single")

    with pytest.raises(ValueError, match=r"unknown reduction 'avg'; use one of 'sum',"):
        repl.reduce("avg", replicator.PerReplica([1.0]))


def test_reducing_integers_to_a_mean_is_refused(in_graph):
    """Rounding unnoticed would be a wrong number: the mean of 1 and 2 is not 1."""
    values = replicator.PerReplica([tf.constant(1), tf.constant(2)])

    with pytest.raises(ValueError, match=r"reduce 'mean' of int32 would be rounded"):
        in_graph.reduce("mean", values)


@pytest.mark.parametrize("source", [0.5, True, "0", None])
def test_the_source_of_a_broadcast_is_a_python_int(in_graph, source):
    """It is linked when the step is traced."""

    def step():
        return replicator.broadcast(tf.constant(1.0), source)

    with pytest.raises(TypeError, match=r"source_replica_id .* must be a Python int"):
        in_graph.run(step)


def test_a_stock_strategy_does_not_accumulate_gradients():
    """It would fail deep in a branch of Keras; the message names the way out."""
    repl = replicator.create("tf_mirrored", num_replicas=1, devices=["CPU:0"])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)

    with pytest.raises(
        ValueError, match=r"gradient_accumulation_steps=2 does not work with Mirrored"
    ):
        repl.wrap_optimizer(optimizer)


def test_attributes_of_a_wrapped_optimizer_are_those_of_the_optimizer(in_graph):
    """Reading and setting reach the optimizer that does the work."""
    with in_graph.context():
        weight = tf.Variable(1.0)
        inner = keras.optimizers.SGD(0.5)
        optimizer = in_graph.wrap_optimizer(inner)
        optimizer.build([weight])

    def step():
        optimizer.apply_gradients([(tf.constant(1.0), weight)])

    in_graph.run(step)
    optimizer.learning_rate = 0.25
    in_graph.run(step)

    assert 0.25 == float(inner.learning_rate)
    assert 1.0 - 0.5 - 0.25 == float(weight)
    assert optimizer.uses_fused_update
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = optimizer.no_such_thing


def test_a_wrapped_optimizer_can_be_copied():
    """Looking up attributes of a half-made copy ends."""
    optimizer = replicator.ReplicatedOptimizer(
        keras.optimizers.SGD(0.5), num_replicas=2
    )

    assert 0.5 == float(copy.copy(optimizer).learning_rate)


@pytest.mark.parametrize("kind", errors.ReplicatorError.__subclasses__())
def test_errors_survive_a_pipe(kind):
    """Workers send them to their parent."""
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
    """Before the first step, and on backends that have none."""
    repl = replicator.create(backend, devices=["CPU:0"])

    assert re.search(text, repl.explain())


def test_a_stock_strategy_out_of_sync_is_named(per_replica):
    """A copy that was tampered with is found on the peer, too."""
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


@pytest.mark.parametrize("autograph", [True, False])
def test_run_in_a_function_of_the_user_is_refused(repl_once, autograph):
    """It would count steps when it is traced, not when it runs."""

    def step():
        return tf.constant(1.0)

    @tf.function(autograph=autograph)
    def train():
        return repl_once.run(step)[0]

    with pytest.raises(
        errors.RunContextError, match=r"inside a tf\.function.*num_steps"
    ):
        train()
    assert 0 == repl_once.num_steps_run


def test_run_in_a_step_is_refused(repl_once):
    """A step has one replica, and cannot start others."""

    def inner():
        return tf.constant(1.0)

    def step():
        return repl_once.run(inner)[0]

    with pytest.raises(errors.RunContextError, match=r"inside a step function"):
        repl_once.run(step)
