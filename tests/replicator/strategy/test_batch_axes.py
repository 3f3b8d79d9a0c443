"""The dimension of the examples: what is found is where a permutation of them shows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replicator.strategy.batch_axes import BatchAxes

B = 5
X = np.random.RandomState(0).randn(B, 4, 6).astype(np.float32)
IMAGES = np.random.RandomState(1).randn(B, 4, 4, 3).astype(np.float32)
ORDER = np.array([3, 0, 4, 1, 2])
W = np.random.RandomState(2).randn(6, 7).astype(np.float32)
FILTER = np.random.RandomState(3).randn(2, 2, 3, 2).astype(np.float32)
TABLE = np.random.RandomState(4).randn(9, 6, 2).astype(np.float32)


def rows(x):
    """A matrix of examples."""
    return x[:, 0]


def indices(x):
    """Numbers of rows of a table."""
    return tf.cast(tf.abs(x[:, 0]) * 2.0, tf.int32)


FOLLOWED = {
    "functions": lambda x: tf.nn.relu(tf.exp(x * 2.0 - 1.0)),
    "softmax of features": tf.nn.softmax,
    "a sort of features": lambda x: tf.sort(x, axis=-1),
    "broadcast": lambda x: x + rows(x)[:, None] + tf.ones([4, 1]),
    "fewer dimensions": lambda x: tf.transpose(x, [1, 0, 2]) - rows(x),
    "where": lambda x: tf.where(x > 0.0, x, tf.zeros_like(x)),
    "transposed": lambda x: tf.transpose(x, [2, 1, 0]),
    "reduced": lambda x: tf.reduce_mean(tf.transpose(x, [1, 0, 2]), axis=0),
    "reduced and kept": lambda x: tf.reduce_max(x, axis=[1, 2], keepdims=True),
    "product": lambda x: tf.matmul(rows(x), W),
    "product of a transpose": lambda x: tf.matmul(
        tf.transpose(rows(x)), W, transpose_a=True
    ),
    "batch of products": lambda x: tf.matmul(x, x, transpose_b=True),
    "equation": lambda x: tf.einsum("abc,cd->dab", x, W),
    "equation of two": lambda x: tf.einsum("abc,adc->bad", x, x),
    "flattened": lambda x: tf.reshape(x, [-1, 24]),
    "sliced": lambda x: x[:, 1:3, None, 0],
    "sliced later": lambda x: tf.transpose(x, [1, 0, 2])[0, None, :, 2],
    "dimensions more and less": lambda x: tf.squeeze(
        tf.expand_dims(x[:, :1], 0), axis=[0, 2]
    ),
    "stacked": lambda x: tf.stack([x, x * 2.0], axis=0),
    "concatenated": lambda x: tf.concat([x, x * 2.0], axis=2),
    "rows of a table": lambda x: tf.gather(TABLE, indices(x)),
    "cumulative": lambda x: tf.cumsum(x, axis=1),
    "sum of squares": lambda x: tf.reduce_sum(tf.square(x), axis=-1),
}
OF_IMAGES = {
    "convolved": lambda x: tf.nn.conv2d(x, FILTER, 1, "SAME"),
    "pooled": lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
    "with a bias": lambda x: tf.nn.bias_add(x, tf.ones([3])),
}
NOT_FOLLOWED = {
    "mixed by a reshape": lambda x: tf.reshape(x, [-1, 6]),
    "reduced over examples": lambda x: tf.reduce_sum(x, axis=0),
    "some examples": lambda x: x[1:],
    "one example": lambda x: x[0],
    "in another order": lambda x: tf.gather(x, [1, 0]),
    "reversed": lambda x: tf.reverse(x, [0]),
    "rolled": lambda x: tf.roll(x, 1, axis=0),
    "against each other": lambda x: rows(x)[:, None] - rows(x)[None],
    "contracted": lambda x: tf.matmul(rows(x), rows(x), transpose_a=True),
    "an equation without it": lambda x: tf.einsum("abc,abd->cd", x, x),
    "every example with every other": lambda x: tf.einsum("abc,dbc->ad", x, x),
}


def _traced(function, value, size=None):
    """The operations of a function of a batch, added in order, and its result."""
    shape = [size, *value.shape[1:]]
    traced = tf.function(function).get_concrete_function(tf.TensorSpec(shape))
    graph = traced.graph
    batch = graph.inputs[0]
    of_examples = {batch.op}
    for op in graph.get_operations():
        is_shape = op.type in ("Shape", "Size")
        if not is_shape and any(one.op in of_examples for one in op.inputs):
            of_examples.add(op)
    axes = BatchAxes({batch.op}, lambda tensor: tensor.op in of_examples)
    for op in graph.get_operations():
        axes.add(op)
    (result,) = graph.outputs
    return axes, graph, result


def _cases(functions, value):
    return [pytest.param(of, value, id=name) for name, of in functions.items()]


@pytest.mark.parametrize("size", [None, B])
@pytest.mark.parametrize(
    ("function", "value"), [*_cases(FOLLOWED, X), *_cases(OF_IMAGES, IMAGES)]
)
def test_examples_are_where_a_permutation_of_them_shows(function, value, size):
    """Numerically: results of permuted examples are permuted results."""
    axes, _, result = _traced(function, value, size)
    axis = axes.of(result.op.inputs[0])  # the function's own last identity

    assert axis is not None
    permuted = np.take(np.asarray(function(tf.constant(value))), ORDER, axis=axis)
    np.testing.assert_allclose(
        permuted, function(tf.constant(value[ORDER])), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("size", [None, B])
@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_may_mix_examples_has_none(name, size):
    """Whatever is not known for certain."""
    function = NOT_FOLLOWED[name]
    axes, _, result = _traced(function, X, size)

    assert axes.of(result.op.inputs[0]) is None


def _found(function, asked):
    axes, graph, _ = _traced(function, X)
    return {op.type for op in graph.get_operations() if getattr(axes, asked)(op)}


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda x: tf.reduce_mean(x, axis=0), {"Mean"}),
        (lambda x: tf.reduce_max(tf.transpose(x), axis=2), {"Max"}),
        (lambda x: tf.matmul(rows(x), x[:, 1], transpose_a=True), {"MatMul"}),
        (lambda x: tf.einsum("abc,abd->cd", x, x), {"Einsum"}),
        (lambda x: tf.reduce_sum(x, axis=1), set()),
        (lambda x: tf.matmul(rows(x), W), set()),
        (lambda x: tf.reduce_mean(tf.reshape(x, [-1, 6]), axis=0), set()),
    ],
)
def test_what_sums_along_examples_is_found(function, types):
    """A mean by column, or a product that contracts them."""
    assert types == _found(function, "joins")


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda x: tf.nn.softmax(x, axis=0), {"Softmax"}),
        (lambda x: tf.nn.log_softmax(rows(x), axis=0), {"LogSoftmax"}),
        (lambda x: tf.sort(rows(x), axis=0), {"TopKV2"}),
        (lambda x: tf.cumsum(x, axis=0), {"Cumsum"}),
        (lambda x: tf.cumsum(x, axis=-1), set()),
        (tf.nn.softmax, set()),
    ],
)
def test_what_compares_along_examples_is_found(function, types):
    """A softmax or a sort of the batch."""
    assert types == _found(function, "mixes")
