"""Every collective on every backend: values, order, gradients and misuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import errors

ATOL_FLOAT32 = 1e-6


def _operands(num_replicas: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(num_replicas)]


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
def test_all_reduce_combines_over_replicas(repl, per_replica, op):
    """The result is NumPy's reduction over the replica axis, on every replica."""
    xs = _operands(repl.num_replicas)

    results = repl.run(lambda x: replicator.all_reduce(x, op), per_replica(xs))

    expected = getattr(np, op)(np.stack(xs), axis=0)
    assert repl.num_replicas == len(results)
    for result in results:
        np.testing.assert_allclose(expected, result, atol=ATOL_FLOAT32)


def test_the_worked_example_of_the_public_design(repl):
    """Nests of mixed ranks give the values of the Replicator design document."""
    if repl.num_replicas != 2:
        pytest.skip("the worked example has two replicas")
    tree = {
        "a": replicator.PerReplica([tf.constant(1), tf.constant(3)]),
        "b": replicator.PerReplica([tf.constant([40, 1]), tf.constant([2, 98])]),
    }

    def step(x):
        return {
            "sum": replicator.all_sum(x),
            "min": replicator.all_min(x),
            "max": replicator.all_max(x),
            "gather": replicator.all_gather(x),
            "broadcast": replicator.broadcast(x, source_replica_id=1),
        }

    out = repl.run(step, tree)

    for r in range(2):
        got = tf.nest.map_structure(lambda leaf, r=r: leaf[r].numpy().tolist(), out)
        assert {"a": 4, "b": [42, 99]} == got["sum"]
        assert {"a": 1, "b": [2, 1]} == got["min"]
        assert {"a": 3, "b": [40, 98]} == got["max"]
        assert {"a": [1, 3], "b": [[40, 1], [2, 98]]} == got["gather"]
        assert {"a": 3, "b": [2, 98]} == got["broadcast"]


def test_all_gather_orders_by_replica_id(repl):
    """Slice r of a gather is what replica r gave."""

    def step():
        return replicator.all_gather(replicator.get_replica_context().replica_id)

    out = repl.run(step)

    for result in out:
        assert list(range(repl.num_replicas)) == result.numpy().tolist()


def _weights(num_replicas: int) -> np.ndarray:
    return np.arange(1, num_replicas + 1, dtype=np.float32)


def _weighted_gradient(repl, per_replica, collective, xs):
    """Gradient of weight[r] * sum(collective(x_r)**2) with respect to x_r."""

    def step(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = weight * tf.reduce_sum(collective(x) ** 2)
        return tape.gradient(loss, x)

    def unpack(pair):
        return step(*pair)

    out = repl.run(unpack, (per_replica(xs), per_replica(_weights(len(xs)))))
    return [g.numpy() for g in out]


def test_gradient_of_all_sum_is_all_sum(repl, per_replica):
    """d/dx_r of sum_s w_s * |sum x|^2 is 2 * sum(w) * sum(x), on every replica."""
    xs = _operands(repl.num_replicas)

    grads = _weighted_gradient(repl, per_replica, replicator.all_sum, xs)

    expected = 2 * _weights(len(xs)).sum() * np.sum(xs, axis=0)
    for grad in grads:
        np.testing.assert_allclose(expected, grad, rtol=1e-5)


def test_gradient_of_all_mean_is_all_mean(repl, per_replica):
    """d/dx_r of sum_s w_s * |mean x|^2 is 2 * mean(w) * mean(x)."""
    xs = _operands(repl.num_replicas)

    grads = _weighted_gradient(repl, per_replica, replicator.all_mean, xs)

    expected = 2 * _weights(len(xs)).mean() * np.mean(xs, axis=0)
    for grad in grads:
        np.testing.assert_allclose(expected, grad, rtol=1e-5)


def test_gradient_of_all_max_goes_to_the_holder(repl, per_replica):
    """Only the replica that holds the maximum gets its gradient."""
    xs = _operands(repl.num_replicas)

    grads = _weighted_gradient(repl, per_replica, replicator.all_max, xs)

    best = np.max(xs, axis=0)
    for x, grad in zip(xs, grads, strict=True):
        expected = np.where(x == best, 2 * _weights(len(xs)).sum() * best, 0)
        np.testing.assert_allclose(expected, grad, rtol=1e-5)


def test_gradient_of_all_gather_is_the_own_slice_of_the_sum(repl, per_replica):
    """Replica r's gradient is 2 * sum(w) * x_r."""
    xs = _operands(repl.num_replicas)

    grads = _weighted_gradient(repl, per_replica, replicator.all_gather, xs)

    for x, grad in zip(xs, grads, strict=True):
        np.testing.assert_allclose(2 * _weights(len(xs)).sum() * x, grad, rtol=1e-5)


def test_gradient_of_broadcast_goes_to_the_source(repl, per_replica):
    """The source gets the sum of all gradients, the others zero."""
    xs = _operands(repl.num_replicas)
    source = repl.num_replicas - 1

    grads = _weighted_gradient(
        repl, per_replica, lambda x: replicator.broadcast(x, source), xs
    )

    for r, (x, grad) in enumerate(zip(xs, grads, strict=True)):
        expected = 2 * _weights(len(xs)).sum() * x if r == source else 0 * x
        np.testing.assert_allclose(expected, grad, rtol=1e-5)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_sparse_slices_reduce_to_what_their_dense_form_does(repl, op):
    """IndexedSlices of all replicas join; densified, they equal the dense result."""
    n = repl.num_replicas
    values = [np.full((2, 3), r + 1, np.float32) for r in range(n)]
    indices = [np.array([r % 4, 3]) for r in range(n)]

    def step(pair):
        slices = tf.IndexedSlices(pair[0], pair[1], dense_shape=tf.constant([5, 3]))
        return tf.convert_to_tensor(replicator.all_reduce(slices, op))

    out = repl.run(
        step, (replicator.PerReplica(values), replicator.PerReplica(indices))
    )

    dense = np.zeros((n, 5, 3), np.float32)
    for r in range(n):
        np.add.at(dense[r], indices[r], values[r])
    for result in out:
        np.testing.assert_allclose(getattr(dense, op)(axis=0), result, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64"])
def test_all_sum_keeps_the_type(in_graph, dtype):
    """Types of every width are summed as they are."""
    dtype = tf.as_dtype(dtype)
    xs = replicator.PerReplica([tf.constant([1, 2], dtype), tf.constant([3, 5], dtype)])

    out = in_graph.run(replicator.all_sum, xs)

    assert dtype == out[1].dtype
    assert [4, 7] == tf.cast(out[1], tf.int32).numpy().tolist()


def test_empty_nests_pass(repl):
    """A collective of nothing is nothing."""
    out = repl.run(
        lambda: {
            "x": replicator.get_replica_context().replica_id,
            "n": len(replicator.all_sum([])),
        }
    )

    assert 0 == int(out["n"][0])


def test_a_collective_outside_a_replica_teaches():
    """The message says where it belongs and what to use outside."""
    with pytest.raises(
        errors.CollectiveContextError,
        match=r"all_reduce\(\) was called in cross-replica context.*inside the step",
    ):
        replicator.all_sum(1.0)


def test_an_unknown_reduction_lists_what_there_is(in_graph):
    """The message names the four reductions."""
    with pytest.raises(ValueError, match=r"unknown reduction 'avg'; use one of 'sum'"):
        in_graph.run(lambda: replicator.all_reduce(tf.constant(1.0), "avg"))


def test_the_mean_of_integers_is_refused(in_graph):
    """Rounding in silence would be a wrong number."""
    with pytest.raises(ValueError, match=r"'mean' of int32 would have to round"):
        in_graph.run(lambda: replicator.all_mean(tf.constant(1)))


def test_broadcast_from_nowhere_is_refused(in_graph):
    """The message gives the range."""
    with pytest.raises(
        ValueError, match=r"source_replica_id 2 is out of range.*0 to 1"
    ):
        in_graph.run(lambda: replicator.broadcast(tf.constant(1.0), 2))


@pytest.mark.parametrize("where", ["cond", "while", "function"])
def test_a_collective_in_control_flow_teaches(in_graph, where):
    """Where replicas could take different paths, the message says how to mend it."""

    def in_cond():
        x = tf.random.uniform([])
        return tf.cond(x > 0.5, lambda: replicator.all_sum(x), lambda: x)

    def in_while():
        return tf.while_loop(
            lambda x: x < 10.0, lambda x: [replicator.all_sum(x)], [tf.constant(1.0)]
        )

    @tf.function
    def inner(x):
        return replicator.all_sum(x)

    def in_function():
        return inner(tf.constant(1.0))

    step = {"cond": in_cond, "while": in_while, "function": in_function}[where]
    with pytest.raises(
        errors.CollectiveControlFlowError, match=r"called inside .*move it out"
    ):
        in_graph.run(step)
