"""A wrapped optimizer where Keras' own is expected."""

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors


def test_variables_may_be_those_it_was_built_with(repl_once, per_replica, wrapped):
    """As Keras has it: apply(grads) alone; the gradients are averaged."""
    weights, optimizer = wrapped(repl_once)
    optimizer.build(weights)

    def step(x):
        optimizer.apply([tf.stack([x, x]), tf.stack([2 * x, 0.0])])

    num_replicas = repl_once.num_replicas
    repl_once.run(step, per_replica([float(r) for r in range(num_replicas)]))

    mean = (num_replicas - 1) / 2
    assert [1.0 - 0.5 * mean, 2.0 - 0.5 * mean] == pytest.approx(weights[0].numpy())
    assert [3.0 - mean, 4.0] == pytest.approx(weights[1].numpy())


def test_gradients_that_are_none_are_left_out(in_graph, wrapped):
    """As in apply_gradients."""
    weights, optimizer = wrapped(in_graph)

    in_graph.run(lambda: optimizer.apply([tf.constant([2.0, 0.0]), None], weights))

    assert 0.0 == float(weights[0][0])


def test_an_update_outside_a_step_is_refused_in_this_spelling(in_graph, wrapped):
    weights, optimizer = wrapped(in_graph)

    with pytest.raises(
        errors.CollectiveContextError, match=r"^apply\(\) was called in cross-replica"
    ):
        optimizer.apply([tf.constant([1.0, 1.0])], weights[:1])


def test_it_is_named_by_both_classes(in_graph, wrapped):
    """Who prints it sees that it is wrapped, although it passes for an SGD."""
    _, optimizer = wrapped(in_graph)

    assert "<ReplicatedOptimizer of SGD>" == repr(optimizer)
    assert isinstance(optimizer, keras.optimizers.SGD)


class _LabelledOptimizer(replicator.ReplicatedOptimizer):
    def __init__(self, optimizer):
        self.label = "first"
        super().__init__(optimizer)


def test_attributes_belong_to_who_defined_them():
    """What a constructor sets stays with the wrapper; the rest reaches Keras."""
    inner = keras.optimizers.SGD(0.5)
    optimizer = _LabelledOptimizer(inner)
    own = dict(vars(optimizer))

    optimizer.label = "second"
    optimizer.uses_fused_update = True
    optimizer.learning_rate = 0.25

    assert own | {"label": "second", "uses_fused_update": True} == vars(optimizer)
    assert not hasattr(inner, "label")
    assert not hasattr(inner, "uses_fused_update")
    assert 0.25 == float(inner.learning_rate)
