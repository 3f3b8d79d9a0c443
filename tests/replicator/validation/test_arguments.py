"""What messages call arguments by, and checks of names, paths and lists."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator.validation import arguments


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
    shown = arguments.shown(value)

    assert shown.startswith(text)
    assert "\n" not in shown
    assert len(shown) <= 100


@pytest.mark.parametrize("value", [None, 1, ["a"], tf.constant(["a", "b"]), np.ones(2)])
def test_only_texts_are_compared_with_names(value):
    """A comparison with a tensor is a tensor."""
    assert arguments.is_one_of("a", ("a", "b"))
    assert not arguments.is_one_of("c", ("a", "b"))
    assert not arguments.is_one_of(value, ("a", "b"))


@pytest.mark.parametrize("value", ["a/b", b"a/b", pathlib.Path("a/b")])
def test_a_path_becomes_text(value):
    assert "a/b" == arguments.path_of(value, "restore(path)")


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
        arguments.path_of(value, "restore(path)")


@pytest.mark.parametrize(
    "value", [(1, 2), iter([1, 2]), {1: 0, 2: 0}, np.array([1, 2])]
)
def test_iterables_become_lists(value):
    assert [1, 2] == arguments.listed(value, "f() takes a list")


@pytest.mark.parametrize(
    "value",
    [None, 3, object(), keras.Variable([1.0]), tf.data.Dataset.range(3)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_is_refused(value):
    with pytest.raises(TypeError, match=r"^f\(\) takes a list, but got "):
        arguments.listed(value, "f() takes a list")


def test_errors_of_the_users_generator_come_through():
    """They are none of the argument."""

    def broken():
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        arguments.listed(broken(), "f() takes a list")
