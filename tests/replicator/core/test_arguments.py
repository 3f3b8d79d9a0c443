"""What messages call arguments by, and what they advise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PipelineError

SHOWN = {
    "None": (None, "None"),
    "a number": (2.5, "2.5"),
    "a string": ("text", "'text'"),
    "a list": (["CPU:0", 1], "['CPU:0', 1]"),
    "many digits": (10**6000, "an integer of 19932 bits"),
    "many digits in a list": ([10**6000], "a 'list'"),
    "many lines": ("a line\n" * 500, "'" + "a line\\n" * 12 + "..."),
    "an array": (np.ones([50, 60]), "a 'ndarray' of float64 and shape (50, 60)"),
    "a tensor": (tf.zeros([2]), "a 'EagerTensor' of float32 and shape (2,)"),
    "a variable": (keras.Variable([1.0]), "a 'Variable' of float32 and shape (1,)"),
    "an object": (object(), "a 'object'"),
    # What only looks like an integer, and one beyond each bound.
    "a flag": (True, "True"),
    "a whole float": (1.0, "1.0"),
    "none": (0, "0"),
    "one too many": (3, "3"),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_message_calls_every_value_by_one_short_line(what):
    value, text = SHOWN[what]

    with pytest.raises(PipelineError) as caught:
        replicator.balance_stages([1.0, 2.0], value)
    message = str(caught.value)

    assert message.startswith(f"num_stages={text}")
    assert " for 2 layers; use an integer from 1 to 2: " in message
    assert "\n" not in message
    assert len(message) <= 200


_PAIR = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
_NO_TENSORS = {
    "None": (None, r"None; leave it out, or pass zeros instead"),
    "ragged": (
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        r"a 'RaggedTensor' .*; make it dense with value.to_tensor\(\)",
    ),
    "sparse": (
        tf.sparse.from_dense([[1.0]]),
        r"a 'SparseTensor' .*; make it dense with tf.sparse.to_dense\(value\)",
    ),
    "PerReplica": (_PAIR, r"a 'PerReplica'; pass it to run\(step_fn, inputs\), and"),
    "huge": (10**30, r"10+; pass an integer that fits into 64 bits, or a float"),
    "object": (object(), r"a 'object'; pass tensors, NumPy arrays or numbers"),
    "set": ({1.0}, r"a 'set'; pass tensors, NumPy arrays or numbers"),
}
_TAKE_TENSORS = {
    r"all_reduce\(\) takes a nest of dense tensors": replicator.all_sum,
    r"mean_over_examples\(\) takes a tensor of one value per example": (
        replicator.mean_over_examples
    ),
    r"map_reduce: fn\(items\[0\]\) must return a nest of dense tensors": (
        lambda value: replicator.map_reduce(lambda _: value, [1])
    ),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("what", _NO_TENSORS)
@pytest.mark.parametrize("said", _TAKE_TENSORS)
def test_the_error_of_what_is_no_tensor_says_what_to_do(said, what):
    value, message = _NO_TENSORS[what]
    if value is None and "map" in said:
        pytest.skip("has a message of its own")
    repl = replicator.create("in_graph", num_replicas=2)

    with pytest.raises(TypeError, match=rf"{said}, but got {message}"):
        repl.run(lambda: _TAKE_TENSORS[said](value))
