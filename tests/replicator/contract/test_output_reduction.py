"""reduce() of what steps returned: the types, shapes and words of all_reduce."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import replicator

FLOATS = ["float8_e4m3fn", "bfloat16", "float16", "float32", "float64"]
INTEGERS = ["int4", "uint4"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]
COMPLEX = ["complex64", "complex128"]
OPS = ("sum", "mean", "min", "max")


def _array(name, values):
    dtype = getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name
    return np.asarray(values).astype(dtype)


def _outcome(function):
    try:
        return np.asarray(function()).tolist()
    except ValueError as error:
        # A step's error says where it came from, and who refuses.
        return str(error).rpartition("all_reduce ")[2].removeprefix("reduce ").strip()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX, "bool"])
def test_outside_a_step_types_are_reduced_as_inside(repl_once, name):
    """Every operation gives the same value, or the same words."""
    numbers = [[r + 1, 3 - r] for r in range(repl_once.num_replicas)]
    values = replicator.PerReplica([tf.constant(_array(name, v)) for v in numbers])

    def inside(op):
        def step(x):
            return replicator.all_reduce(x, op)

        return lambda: repl_once.run(step, values)[0].numpy().astype(complex)

    def outside(op):
        return lambda: repl_once.reduce(op, values).numpy().astype(complex)

    for op in OPS:
        assert _outcome(inside(op)) == _outcome(outside(op)), op


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a", r"reduce 'mean' of string is not defined; reductions take numbers"),
        (True, r"reduce 'mean' of bool is not defined; use 'max' for any"),
        (
            _array("float8_e5m2", 1.0),
            r"reduce 'mean' of float8_e5m2 does not work: .*tf.cast the value to tf.fl",
        ),
    ],
)
def test_types_without_a_mean_are_refused(repl_once, value, message):
    """On one device, too, where nothing would have to be computed."""
    values = replicator.PerReplica([value] * repl_once.num_replicas)

    with pytest.raises(ValueError, match=message):
        repl_once.reduce("mean", values)


def test_values_of_different_shapes_or_types_are_refused(in_graph):
    """Stacking them would fail in TensorFlow's words, or broadcast."""
    shapes = replicator.PerReplica([tf.zeros([1]), tf.zeros([2])])
    types = replicator.PerReplica([tf.constant(1), tf.constant(1.0)])

    with pytest.raises(
        ValueError, match=r"differs .* float32\(1,\), float32\(2,\), is"
    ):
        in_graph.reduce("sum", shapes)
    with pytest.raises(ValueError, match=r"differs between replicas, .*int32\(\), flo"):
        in_graph.reduce("sum", types)


@pytest.mark.parametrize("num_values", [0, 3])
def test_another_number_of_values_is_refused(in_graph, num_values):
    """A part of the replicas has another mean."""
    values = replicator.PerReplica([1.0] * num_values)

    with pytest.raises(
        ValueError, match=rf"reduce 'mean' of {num_values} .*are 2 repl"
    ):
        in_graph.reduce("mean", values)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tf.ragged.constant([[1], [2, 3]]), r"reduce 'sum' of a 'RaggedTensor' is not"),
        (
            tf.sparse.from_dense([[1]]),
            r"reduce 'sum' of a 'SparseTensor' is not defined",
        ),
        (object(), r"values to reduce must be tensors .*, but got a 'object'; pass"),
    ],
)
def test_what_is_no_dense_tensor_is_refused(repl_once, value, message):
    values = replicator.PerReplica([value] * repl_once.num_replicas)

    with pytest.raises(TypeError, match=message):
        repl_once.reduce("sum", values)


def test_sparse_slices_are_reduced_densely(repl_once):
    """As what a step returns of them."""
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([2, 2]))
    values = replicator.PerReplica([slices] * repl_once.num_replicas)

    reduced = repl_once.reduce("sum", values)

    assert [[0, 0], [repl_once.num_replicas] * 2] == reduced.numpy().tolist()
