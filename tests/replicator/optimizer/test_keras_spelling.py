"""A wrapped optimizer where Keras' own is expected."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors


def _made(repl, **options):
    with repl.context():
        weights = [tf.Variable(1.0), tf.Variable([1.0, 2.0])]
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), **options)
    return weights, optimizer


def test_variables_may_be_those_it_was_built_with(repl_once, per_replica):
    """As Keras has it: apply(grads) alone; the gradients are averaged."""
    weights, optimizer = _made(repl_once)
    optimizer.build(weights)

    def step(x):
        optimizer.apply([x, tf.stack([x, x])])

    num_replicas = repl_once.num_replicas
    repl_once.run(step, per_replica([float(r) for r in range(num_replicas)]))

    mean = (num_replicas - 1) / 2
    assert 1.0 - 0.5 * mean == pytest.approx(weights[0].numpy())
    assert [1.0 - 0.5 * mean, 2.0 - 0.5 * mean] == pytest.approx(weights[1].numpy())


def test_gradients_that_are_none_are_left_out(in_graph):
    """As in apply_gradients."""
    weights, optimizer = _made(in_graph)

    def step():
        optimizer.apply([tf.constant(2.0), None], weights)

    in_graph.run(step)

    assert 0.0 == float(weights[0])


@pytest.mark.parametrize(
    ("grads", "variables", "message"),
    [
        (1, 2, r"apply\(\) got 1 gradients for 2 variables; pass one per variable, in"),
        (2, None, r"got gradients but no variables, and the optimizer was not built"),
        (0, 0, r"got no gradient: all of them are None"),
    ],
)
def test_gradients_without_variables_are_refused(in_graph, grads, variables, message):
    """Keras would stop at the shorter of the two."""
    weights, optimizer = _made(in_graph)

    def step():
        chosen = variables if variables is None else weights[:variables]
        optimizer.apply([tf.constant(1.0)] * grads, chosen)

    with pytest.raises(ValueError, match=message):
        in_graph.run(step)


def _gradients_alone(optimizer, grads, _):
    optimizer.apply_gradients(grads)


def _pairs(optimizer, grads, variables):
    optimizer.apply(zip(grads, variables, strict=True), variables)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (
            _gradients_alone,
            r"apply_gradients\(\) takes pairs of gradient and variable;",
        ),
        (
            _pairs,
            r"apply\(\) got pairs of gradient and variable; write optimizer.apply\(",
        ),
    ],
)
def test_one_spelling_with_the_arguments_of_the_other(in_graph, update, message):
    """Each message has both."""
    weights, optimizer = _made(in_graph)

    def step():
        update(optimizer, [tf.ones([2])], weights[1:])

    with pytest.raises(TypeError, match=message):
        in_graph.run(step)


def test_an_update_outside_a_step_is_refused_in_this_spelling(in_graph):
    """The message has the name that the user wrote."""
    weights, optimizer = _made(in_graph)

    with pytest.raises(
        errors.CollectiveContextError, match=r"^apply\(\) was called in cross-replica"
    ):
        optimizer.apply([tf.constant(1.0)], weights[:1])


def test_an_option_works_in_this_spelling(in_graph):
    """Accumulation counts calls of apply."""
    weights, optimizer = _made(in_graph, accumulation_steps=2)

    def step():
        optimizer.apply([tf.constant(1.0)], weights[:1])

    in_graph.run(step)
    assert 1.0 == float(weights[0])
    in_graph.run(step)
    assert 0.5 == float(weights[0])


def test_a_stateless_update_is_refused(in_graph):
    """It would be Keras' own, of this replica's gradients alone."""
    weights, optimizer = _made(in_graph)

    def step():
        optimizer.stateless_apply([], [tf.constant(1.0)], weights[:1])

    with pytest.raises(
        errors.OptimizerOptionError, match=r"stateless_apply\(\).*optimizer.apply\(grad"
    ):
        in_graph.run(step)


@pytest.mark.parametrize("entry", ["compile", "get", "loss_scale"])
def test_keras_says_what_to_write_instead(in_graph, entry):
    """Wherever Keras refuses an optimizer, it quotes it."""
    _, optimizer = _made(in_graph)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    calls = {
        "compile": lambda: model.compile(optimizer=optimizer, loss="mse"),
        "get": lambda: keras.optimizers.get(optimizer),
        "loss_scale": lambda: keras.Sequential().compile(optimizer),
    }

    with pytest.raises(
        ValueError,
        match=r"Keras' compile\(\) and fit\(\) cannot use.*repl\.run\(step_f",
    ):
        calls[entry]()


def test_it_is_named_in_short(in_graph):
    """The message is in str(), for Keras; repr() is for people who print it."""
    _, optimizer = _made(in_graph)

    assert "<ReplicatedOptimizer of SGD>" == repr(optimizer)
    assert str(optimizer).startswith("<ReplicatedOptimizer of SGD>, which Keras' comp")


class _LabelledOptimizer(replicator.ReplicatedOptimizer):
    """A subclass with an attribute of its own."""

    def __init__(self, optimizer):
        self.label = "first"
        super().__init__(optimizer, num_replicas=1)


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


def test_wrapping_twice_is_refused():
    """Whichever replicator wrapped it first."""
    first = replicator.create("single").wrap_optimizer(keras.optimizers.SGD(0.5))

    with pytest.raises(TypeError, match=r"already wrapped, <Replic.*; use it as it is"):
        replicator.create("in_graph", num_replicas=2).wrap_optimizer(first)
