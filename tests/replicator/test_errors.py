"""Misuse: every message says what was passed, why it is wrong and what to do."""

from __future__ import annotations

import copy
import pickle

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors, registry


def test_an_unknown_backend_lists_those_there_are():
    """Sorted, as backend_names() gives them."""
    with pytest.raises(
        errors.UnknownBackendError,
        match=r"unknown backend 'horovod'; use one of in_graph, single, tf_mirrored",
    ):
        replicator.create("horovod")


@pytest.mark.parametrize(
    ("backend", "num_replicas", "message"),
    [
        ("single", 2, r"'single' cannot run num_replicas=2; it runs 1$"),
        ("in_graph", 0, r"'in_graph' cannot run num_replicas=0; it runs 1 or more"),
        ("in_graph", -1, r"cannot run num_replicas=-1"),
        ("in_graph", 2.0, r"num_replicas 2.0 must be an integer"),
        ("in_graph", True, r"num_replicas True must be an integer"),
        ("in_graph", "2", r"num_replicas '2' must be an integer"),
    ],
)
def test_numbers_of_replicas_that_a_backend_cannot_run(backend, num_replicas, message):
    """The message has the number and the range."""
    with pytest.raises(errors.DeviceError, match=message):
        registry.create(backend, num_replicas=num_replicas)


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
        errors.DeviceError, match=r"not num_replicas=2, devices=None; use InGraphRep"
    ):
        replicator.SingleDeviceReplicator(num_replicas=2)


def test_unknown_placements_of_variables_list_those_there_are():
    """The message quotes all three."""
    with pytest.raises(
        ValueError, match=r"'host' is not one of 'auto', 'shared', 'mirrored'"
    ):
        replicator.create("in_graph", variable_placement="host")


@pytest.mark.parametrize("num_steps", [0, -1, 1.0, True, "2"])
def test_numbers_of_steps_must_be_positive_integers(repl, num_steps):
    """On every backend, before anything is traced."""
    with pytest.raises(ValueError, match=r"num_steps .* must be an integer of at leas"):
        repl.run(lambda: None, num_steps=num_steps)


def test_several_steps_need_fresh_batches(repl):
    """Fixed values would be the same batch again and again."""
    values = replicator.PerReplica([tf.constant(1)] * repl.num_replicas)

    with pytest.raises(ValueError, match=r"num_steps 2 needs fresh batches.*InputIter"):
        repl.run(tf.identity, values, num_steps=2)


def test_inputs_of_another_kind_are_refused(repl):
    """A bare tensor does not say which replica it is for."""
    with pytest.raises(TypeError, match=r"nest of PerReplica, or None; got 'list'"):
        repl.run(tf.identity, [tf.constant(1)])


def test_values_for_another_number_of_replicas_are_refused(repl):
    """The message has both numbers."""
    n = repl.num_replicas
    values = replicator.PerReplica([1] * (n + 1))

    with pytest.raises(
        ValueError, match=rf"hold {n + 1} values per leaf, but there are {n} replicas"
    ):
        repl.run(tf.identity, values)


def test_values_of_different_shapes_are_refused(in_graph):
    """A collective could not combine them."""
    values = replicator.PerReplica([tf.zeros([2]), tf.zeros([3])])

    with pytest.raises(ValueError, match=r"inputs differ between replicas in shape or"):
        in_graph.run(tf.identity, values)


def test_results_that_are_no_tensors_are_refused(repl):
    """The message names the step and the type."""

    def step():
        return {"model": object()}

    with pytest.raises(TypeError, match=r"step returned a 'object'; a step returns"):
        repl.run(step)


def test_steps_may_return_nothing_and_parts_of_nothing(repl):
    """None stays None, for every replica; reducing it gives None."""
    with repl.context():
        counter = tf.Variable(0.0, trainable=False)

    def count():
        counter.assign_add(replicator.all_sum(1.0))

    def part():
        return {"a": None, "b": tf.constant(3)}

    nothing = repl.run(count)
    out = repl.run(part)

    n = repl.num_replicas
    assert [None] * n == list(nothing)
    assert [None] * n == list(out["a"])
    assert {"a": None, "b": 3 * n} == repl.reduce("sum", out)
    assert n == float(counter.numpy())


def test_reducing_by_an_unknown_operation_lists_what_there_is(repl):
    """The same message as inside a step."""
    with pytest.raises(ValueError, match=r"unknown reduction 'avg'; use one of 'sum',"):
        repl.reduce("avg", replicator.PerReplica([1.0]))


def test_reducing_integers_to_a_mean_is_refused(repl):
    """Rounding in silence would be a wrong number: the mean of 1 and 2 is not 1."""
    values = replicator.PerReplica([tf.constant(1), tf.constant(2)])

    with pytest.raises(ValueError, match=r"reduce 'mean' of int32 would have to round"):
        repl.reduce("mean", values)


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 6.0), ("mean", 3.0), ("min", 2.0), ("max", 4.0)]
)
def test_reducing_outside_combines_replicas(repl, op, expected):
    """Other leaves of the nest are returned as they are."""
    nest = {"x": replicator.PerReplica([tf.constant(2.0), tf.constant(4.0)]), "y": "z"}

    assert {"x": expected, "y": "z"} == repl.reduce(op, nest)


@pytest.mark.parametrize("source", [0.5, True, "0", None])
def test_the_source_of_a_broadcast_is_a_python_int(in_graph, source):
    """It is linked when the step is traced."""

    def step():
        return replicator.broadcast(tf.constant(1.0), source)

    with pytest.raises(TypeError, match=r"source_replica_id .* must be a Python int"):
        in_graph.run(step)


def test_extremes_of_sparse_slices_are_refused(in_graph):
    """The message names the way: densify."""

    def step():
        slices = tf.IndexedSlices(
            tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2])
        )
        return replicator.all_max(slices)

    with pytest.raises(ValueError, match=r"IndexedSlices knows 'sum' and 'mean', not "):
        in_graph.run(step)


def test_an_optimizer_of_another_kind_is_refused(repl):
    """The message says which attribute is missing and gives an example."""
    with pytest.raises(
        TypeError, match=r"needs a Keras 3 optimizer, but 'str' has no 'apply'"
    ):
        repl.wrap_optimizer("sgd")


def test_a_stock_strategy_does_not_accumulate_gradients():
    """It would fail deep in a branch of Keras; the message names the way out."""
    repl = replicator.create("tf_mirrored", num_replicas=1, devices=["CPU:0"])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)

    with pytest.raises(
        ValueError, match=r"gradient_accumulation_steps=2 does not work under Mirrored"
    ):
        repl.wrap_optimizer(optimizer)


def test_updates_belong_in_a_step(repl):
    """Outside, there are no replicas to average over."""
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    with pytest.raises(
        errors.CollectiveContextError,
        match=r"apply_gradients\(\) was called in cross-replica context",
    ):
        optimizer.apply_gradients([])


def test_updates_without_gradients_are_refused(in_graph):
    """A loss that does not depend on the variables trains nothing."""
    with in_graph.context():
        weight = tf.Variable(1.0)
        optimizer = in_graph.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step():
        optimizer.apply_gradients([(None, weight)])

    with pytest.raises(ValueError, match=r"got no gradient: every one is None"):
        in_graph.run(step)


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


def test_plans_are_explained_once_a_step_was_traced(repl):
    """in_graph prints each step's plan; the others say what they do."""
    before = repl.explain()

    def step():
        return replicator.all_sum(tf.constant(1.0))

    repl.run(step)
    after = repl.explain()

    if isinstance(repl, replicator.InGraphReplicator):
        assert "no step was traced yet; call run() first" == before
        assert "step, " in after
        assert "all_reduce(sum): 1 tensors, 4 bytes per replica" in after
    else:
        assert before == after
        assert "replica" in after


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
