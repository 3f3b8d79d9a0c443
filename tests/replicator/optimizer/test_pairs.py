"""Gradients and variables that do not belong together are named."""

import keras
import pytest
import tensorflow as tf

from replicator import errors


def _slices(values, dense_shape=None):
    return tf.IndexedSlices(values, tf.constant([0]), dense_shape)


def _pairs(make):
    return lambda optimizer, weights: optimizer.apply_gradients(make(weights[0]))


_GRAD = [1.0, 1.0]
_SAID = r"apply_gradients\(\) takes pairs of gradient and variable; write optimizer.*"
_LISTS = r"apply\(\) takes a list of gradients and a list .*got 2.5"


@pytest.mark.parametrize(
    ("update", "kind", "message"),
    [
        (_pairs(lambda _: None), TypeError, rf"{_SAID}, but got None"),
        (_pairs(lambda _: tf.ones([2])), TypeError, rf"{_SAID}, but got a '.*' of flo"),
        (
            _pairs(lambda _: tf.data.Dataset.range(3)),
            TypeError,
            rf"{_SAID}, but got a '_Range",
        ),
        (
            _pairs(lambda w: [1.0, w]),
            TypeError,
            rf"{_SAID}, but got 1.0 instead of a pair",
        ),
        (
            _pairs(lambda _: [(tf.ones([2]), "w")]),
            TypeError,
            r"apply_gradients\(\) got 'w' instead of a variable; pass tf.Variable",
        ),
        (
            _pairs(lambda w: [(object(), w)]),
            TypeError,
            r"the gradient of 'first.*' must be a tensor, but got a 'object'; pass",
        ),
        (
            _pairs(lambda w: [(1.0, w)]),
            ValueError,
            r"gradient of 'first.*' has shape \(\), but the variable has shape \(2,\)",
        ),
        (
            _pairs(lambda w: [(_slices(tf.ones([1]), tf.constant([3])), w)]),
            ValueError,
            r"has shape \(3,\), but the variable has shape \(2,\); pass them in",
        ),
        (
            _pairs(lambda w: [(_slices(tf.ones([1, 4])), w)]),
            ValueError,
            r"has shape \(None, 4\), but the variable has shape \(2,\); pass them in",
        ),
        (lambda o, w: o.apply(2.5, w), TypeError, _LISTS),
        (lambda o, _: o.apply([_GRAD], 2.5), TypeError, _LISTS),
        (
            lambda o, w: o.apply(zip([_GRAD], w[1:], strict=True), w[1:]),
            TypeError,
            r"apply\(\) got pairs of gradient and variable; write optimizer.apply\(",
        ),
        (
            lambda o, w: o.apply([_GRAD], w),
            ValueError,
            r"apply\(\) got 1 gradients for 2 variables; pass one per variable, in",
        ),
        (
            lambda o, _: o.apply([_GRAD, _GRAD]),
            ValueError,
            r"got gradients but no variables, and the optimizer was not built",
        ),
        (
            lambda o, _: o.apply([], []),
            ValueError,
            r"got no gradient: all of them are None",
        ),
        (
            lambda o, w: o.stateless_apply([], [_GRAD], w[:1]),
            errors.OptimizerOptionError,
            r"stateless_apply\(\).*optimizer.apply\(grad",
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
        "a number as gradients",
        "a number as variables",
        "pairs as gradients",
        "too few gradients",
        "no variables",
        "nothing",
        "without replicas",
    ],
)
def test_what_is_no_update_of_variables_is_refused(
    in_graph, wrapped, update, kind, message
):
    weights, optimizer = wrapped(in_graph)

    with pytest.raises(kind, match=message):
        in_graph.run(lambda: update(optimizer, weights))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (None, r"build\(\) takes a list of variables, such as model.*, but got None"),
        ([2.5], r"build\(\) takes a list of variables.*, but got 2.5 among them"),
    ],
)
def test_state_is_made_for_variables(in_graph, wrapped, variables, message):
    """Keras would look for the name of a number."""
    _, optimizer = wrapped(in_graph)

    with pytest.raises(TypeError, match=message):
        optimizer.build(variables)


def refuses_a_variable_without_state(repl, made):
    """The optimizer was built with another one."""
    weights, optimizer = made
    with repl.context():
        optimizer.build(weights[1:])

    with pytest.raises(
        ValueError, match=r"got the variable 'first.*', but the optimizer was built"
    ):
        repl.run(lambda: optimizer.apply_gradients([(tf.ones([2]), weights[0])]))


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.RMSprop])
def test_a_variable_without_state_is_refused(repl_once, wrapped, kind):
    """Plain SGD needs no state."""
    refuses_a_variable_without_state(repl_once, wrapped(repl_once, kind))


def test_a_variable_without_accumulator_is_refused(in_graph, wrapped):
    """Even where the update itself needs no state."""
    refuses_a_variable_without_state(in_graph, wrapped(in_graph, accumulation_steps=2))


def test_slices_may_leave_out_the_shape_of_the_whole(in_graph, wrapped):
    """TensorFlow does not need it."""
    weights, optimizer = wrapped(in_graph)

    def step():
        optimizer.apply_gradients([(_slices(tf.constant([2.0])), weights[0])])

    in_graph.run(step)

    assert [0.0, 2.0] == weights[0].numpy().tolist()
