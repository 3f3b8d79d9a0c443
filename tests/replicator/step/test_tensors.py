"""What becomes a dense tensor, and what the error says otherwise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.step.tensors import tensor_of

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
