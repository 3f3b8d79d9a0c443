"""What messages call arguments by, and checks of names, paths, numbers and tensors."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.core import validation
from replicator.core.step import tensor_of
from replicator.core.validation import is_integer


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (2.5, "2.5"),
        ("text", "'text'"),
        (["CPU:0", 1], "['CPU:0', 1]"),
        (10**6000, "an integer of 19932 bits"),
        ([10**6000], "a 'list'"),
        ("a line\n" * 500, "'" + "a line\\n" * 12 + "..."),
        (np.ones([50, 60]), "a 'ndarray' of float64 and shape (50, 60)"),
        (tf.zeros([2]), "a 'EagerTensor' of float32 and shape (2,)"),
        (keras.Variable([1.0]), "a 'Variable' of float32 and shape (1,)"),
        (object(), "a 'object'"),
    ],
    ids=[
        "None",
        "a number",
        "a string",
        "a list",
        "many digits",
        "many digits in a list",
        "many lines",
        "an array",
        "a tensor",
        "a variable",
        "an object",
    ],
)
def test_a_message_calls_every_value_by_one_short_line(value, text):
    shown = validation.shown(value)

    assert shown.startswith(text)
    assert "\n" not in shown
    assert len(shown) <= 100


@pytest.mark.parametrize("value", [None, 1, ["a"], tf.constant(["a", "b"]), np.ones(2)])
def test_only_texts_are_compared_with_names(value):
    """A comparison with a tensor is a tensor."""
    assert validation.is_one_of("a", ("a", "b"))
    assert not validation.is_one_of("c", ("a", "b"))
    assert not validation.is_one_of(value, ("a", "b"))


@pytest.mark.parametrize("value", ["a/b", b"a/b", pathlib.Path("a/b")])
def test_a_path_becomes_text(value):
    assert "a/b" == validation.path_of(value, "restore(path)")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (2.5, TypeError, r"restore\(path\) must be a path, but got 2.5; pass a string"),
        (
            "",
            ValueError,
            r"restore\(path\) must be a path, but got '', which cannot name",
        ),
        (
            "a\0b",
            ValueError,
            r"got 'a.x00b', which cannot name a file; pass a non-empty",
        ),
    ],
)
def test_what_is_no_path_is_refused(value, kind, message):
    with pytest.raises(kind, match=message):
        validation.path_of(value, "restore(path)")


@pytest.mark.parametrize(
    "value", [(1, 2), iter([1, 2]), {1: 0, 2: 0}, np.array([1, 2])]
)
def test_iterables_become_lists(value):
    assert [1, 2] == validation.listed(value, "f() takes a list")


@pytest.mark.parametrize(
    "value",
    [None, 3, object(), keras.Variable([1.0]), tf.data.Dataset.range(3)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_is_refused(value):
    with pytest.raises(TypeError, match=r"^f\(\) takes a list, but got "):
        validation.listed(value, "f() takes a list")


def test_errors_of_the_users_generator_come_through():
    """They are none of the argument."""

    def broken():
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        validation.listed(broken(), "f() takes a list")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.int64(1), [1]])
def test_what_only_looks_like_an_integer_is_none(value):
    """Neither flags nor numbers of other types."""
    assert not is_integer(value)


def test_a_bound_is_allowed_itself():
    """At least means from there on."""
    assert is_integer(-3)
    assert is_integer(1, least=1)
    assert is_integer(2, most=2)
    assert not is_integer(3, most=2)
    assert not is_integer(0, least=1)


_PAIR = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
_NO_TENSORS = {
    "None": (None, r"got None; leave it out, or pass zeros instead"),
    "ragged": (
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        r"got a 'RaggedTensor' .*; make it dense with value.to_tensor\(\)",
    ),
    "sparse": (
        tf.sparse.from_dense([[1.0]]),
        r"got a 'SparseTensor' .*; make it dense with tf.sparse.to_dense\(value\)",
    ),
    "PerReplica": (
        _PAIR,
        r"got a 'PerReplica'; pass it to run\(step_fn, inputs\), and",
    ),
    "huge": (10**30, r"got 10+; pass an integer that fits into 64 bits, or a float"),
    "object": (object(), r"got a 'object'; pass tensors, NumPy arrays or numbers"),
    "set": ({1.0}, r"got a 'set'; pass tensors, NumPy arrays or numbers"),
}


@pytest.mark.parametrize(
    "value",
    [1.0, np.ones(1), tf.ones([1]), tf.Variable([1.0]), keras.Variable([1.0]), [1.0]],
    ids=lambda value: type(value).__name__,
)
def test_what_has_values_becomes_a_tensor(value):
    assert isinstance(tensor_of(value, "f() takes tensors"), tf.Tensor)


@pytest.mark.parametrize(("value", "message"), _NO_TENSORS.values(), ids=_NO_TENSORS)
def test_the_error_of_what_is_no_tensor_says_what_to_do(value, message):
    with pytest.raises(TypeError, match=rf"^f\(\) takes tensors, but {message}"):
        tensor_of(value, "f() takes tensors")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (replicator.all_sum, r"all_reduce\(\) takes a nest of dense tensors"),
        (replicator.all_gather, r"all_gather\(\) takes a nest of dense tensors"),
        (replicator.broadcast, r"broadcast\(\) takes a nest of dense tensors"),
        (
            replicator.mean_over_examples,
            r"mean_over_examples\(\) takes a tensor of one value per example",
        ),
        (
            lambda value: replicator.map_reduce(lambda _: value, [1]),
            r"map_reduce: fn\(items\[0\]\) must return a nest of dense tensors",
        ),
        (
            lambda value: replicator.map_gather([1], lambda _: value),
            r"map_gather: fn\(items\[0\]\) must return a nest of dense tensors",
        ),
    ],
    ids=["all_sum", "all_gather", "broadcast", "mean", "map_reduce", "map_gather"],
)
def test_the_error_says_which_function_takes_tensors(in_graph, call, said):
    """The error of TensorFlow would say neither."""
    with pytest.raises(TypeError, match=rf"{said}, but got a 'object'; pass tensors"):
        in_graph.run(lambda: call(object()))


def test_a_loss_that_is_scaled_is_a_tensor(in_graph):
    """Not what a step without a loss returns."""
    optimizer = in_graph.wrap_optimizer(keras.optimizers.SGD(0.1), loss_scale=8.0)

    with pytest.raises(
        TypeError, match=r"scale_loss\(\) takes the loss, a tensor, but got None; leave"
    ):
        in_graph.run(lambda: optimizer.scale_loss(None))
