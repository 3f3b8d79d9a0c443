"""Gradients and variables that do not belong together are named."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf


def _made(repl, kind=keras.optimizers.SGD, **options):
    with repl.context():
        weights = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0, 4.0])]
        optimizer = repl.wrap_optimizer(kind(0.5), **options)
    return weights, optimizer


def _slices(values, dense_shape=None):
    return tf.IndexedSlices(values, tf.constant([0]), dense_shape)


_SAID = r"apply_gradients\(\) takes pairs of gradient and variable; write optimizer.*"


@pytest.mark.parametrize(
    ("pairs", "kind", "message"),
    [
        (lambda _: None, TypeError, rf"{_SAID}, but got None"),
        (lambda _: tf.ones([2]), TypeError, rf"{_SAID}, but got a '.*' of float32"),
        (lambda _: tf.data.Dataset.range(3), TypeError, rf"{_SAID}, but got a '_Range"),
        (
            lambda w: [1.0, w],
            TypeError,
            rf"{_SAID}, but got 1.0 instead of a pair",
        ),
        (
            lambda _: [(tf.ones([2]), "w")],
            TypeError,
            r"apply_gradients\(\) got 'w' instead of a variable; pass tf.Variable",
        ),
        (
            lambda w: [(object(), w)],
            TypeError,
            r"the gradient of 'first.*' must be a tensor, but got a 'object'; pass",
        ),
        (
            lambda w: [(1.0, w)],
            ValueError,
            r"gradient of 'first.*' has shape \(\), but the variable has shape \(2,\)",
        ),
        (
            lambda w: [(_slices(tf.ones([1]), tf.constant([3])), w)],
            ValueError,
            r"has shape \(3,\), but the variable has shape \(2,\); pass them in",
        ),
        (
            lambda w: [(_slices(tf.ones([1, 4])), w)],
            ValueError,
            r"has shape \(None, 4\), but the variable has shape \(2,\); pass them in",
        ),
    ],
    ids=[
        "None",
        "a tensor",
        "a dataset",
        "no pairs",
        "no variable",
        "no gradient",
        "a shape",
        "slices of a shape",
        "rows of a shape",
    ],
)
def test_what_is_no_gradient_of_a_variable_is_refused(in_graph, pairs, kind, message):
    """Each message has what was passed and what to write."""
    weights, optimizer = _made(in_graph)

    with pytest.raises(kind, match=message):
        in_graph.run(lambda: optimizer.apply_gradients(pairs(weights[0])))


@pytest.mark.parametrize("is_gradients", [True, False])
def test_the_other_spelling_takes_lists(in_graph, is_gradients):
    """A number is neither gradients nor variables."""
    weights, optimizer = _made(in_graph)

    def step():
        if is_gradients:
            optimizer.apply(2.5, weights)
        else:
            optimizer.apply([tf.ones([2])], 2.5)

    with pytest.raises(
        TypeError, match=r"apply\(\) takes a list of gradients and a list .*got 2.5"
    ):
        in_graph.run(step)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (None, r"build\(\) takes a list of variables, such as model.*, but got None"),
        ([2.5], r"build\(\) takes a list of variables.*, but got 2.5 among them"),
    ],
)
def test_state_is_made_for_variables(in_graph, variables, message):
    """Keras would look for the name of a number."""
    _, optimizer = _made(in_graph)

    with pytest.raises(TypeError, match=message):
        optimizer.build(variables)


def _without_state(repl, kind, **options):
    weights, optimizer = _made(repl, kind, **options)
    with repl.context():
        optimizer.build(weights[1:])

    def step():
        optimizer.apply_gradients([(tf.ones([2]), weights[0])])

    with pytest.raises(
        ValueError, match=r"got the variable 'first.*', but the optimizer was built"
    ):
        repl.run(step)


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.RMSprop])
def test_a_variable_without_state_is_refused(repl_once, kind):
    """The optimizer was built with another one; plain SGD needs no state."""
    _without_state(repl_once, kind)


def test_a_variable_without_accumulator_is_refused(in_graph):
    """Even where the update itself needs no state."""
    _without_state(in_graph, keras.optimizers.SGD, accumulation_steps=2)


def test_slices_may_leave_out_the_shape_of_the_whole(in_graph):
    """TensorFlow does not need it."""
    weights, optimizer = _made(in_graph)

    def step():
        optimizer.apply_gradients([(_slices(tf.constant([2.0])), weights[0])])

    in_graph.run(step)

    assert [0.0, 2.0] == weights[0].numpy().tolist()
