"""Values of one step: dense, ragged, sparse, and what is none of them."""

from __future__ import annotations

import pytest
import tensorflow as tf

import replicator
from replicator.validation import user_functions


def _rows(rows, repl):
    return replicator.PerReplica(
        [tf.ragged.constant(rows[r % len(rows)]) for r in range(repl.num_replicas)]
    )


def test_ragged_values_of_other_lengths_are_the_same_step(repl_once):
    """Rows may differ between replicas and calls; the step is traced once."""
    traced = []

    def step(x):
        traced.append(1)
        return tf.reduce_sum(x), x.nrows()

    def run(rows):
        sums, counts = repl_once.run(step, _rows(rows, repl_once))
        return [(int(s), int(c)) for s, c in zip(sums, counts, strict=True)]

    first = run([[[1, 2], [3]], [[4], [5, 6, 7]]])
    num_traces = len(traced)
    second = run([[[1], [2, 3, 4]], [[], [5]]])

    many = repl_once.num_replicas
    assert ([(6, 2), (22, 2)] * many)[:many] == first
    assert ([(10, 2), (5, 2)] * many)[:many] == second
    assert num_traces == len(traced)


def test_sparse_values_keep_their_shape(repl_once):
    """Each replica gets its own."""
    dense = [[[0, 1], [2, 0]], [[0, 0], [0, 3]]]
    values = replicator.PerReplica(
        [tf.sparse.from_dense(dense[r % 2]) for r in range(repl_once.num_replicas)]
    )

    def step(x):
        return tf.sparse.to_dense(x)

    out = repl_once.run(step, values)

    assert [dense[r % 2] for r in range(repl_once.num_replicas)] == [
        value.numpy().tolist() for value in out
    ]


def test_numbers_of_other_values_are_the_same_step(repl_once):
    """A Python number is a value, and no part of the program."""
    traced = []

    def step(x):
        traced.append(1)
        return x + 1

    num_replicas = repl_once.num_replicas
    repl_once.run(step, replicator.PerReplica([1.0] * num_replicas))
    num_traces = len(traced)
    out = repl_once.run(step, replicator.PerReplica([2.0] * num_replicas))

    assert [3.0] * num_replicas == [float(v) for v in out]
    assert num_traces == len(traced)


@pytest.mark.parametrize("value", [object(), None])
def test_values_that_are_no_tensors_are_refused(repl_once, value):
    """None is what a step without a result returned."""
    values = replicator.PerReplica([value] * repl_once.num_replicas)

    with pytest.raises(
        TypeError, match=r"inputs must be tensors \(dense, ragged.*, but got .*; "
    ):
        repl_once.run(tf.identity, values)


def test_ragged_and_dense_values_do_not_mix(in_graph):
    """One step cannot take both."""
    values = replicator.PerReplica([tf.ragged.constant([[1]]), tf.constant([[1]])])

    with pytest.raises(ValueError, match=r"inputs differ between replicas in shape or"):
        in_graph.run(lambda x: tf.constant(1), values)


@pytest.mark.parametrize("values", [5, None, tf.sparse.from_dense([[1]])])
def test_what_is_no_sequence_of_values_is_refused(values):
    """Of one value for all replicas there is none."""
    with pytest.raises(
        TypeError, match=r"PerReplica takes a sequence with one value pe"
    ):
        replicator.PerReplica(values)


def test_a_step_that_returns_a_ragged_tensor_is_refused(repl_once):
    """What comes out is dense; the message names the step."""

    def step():
        return tf.ragged.constant([[1], [2, 3]])

    with pytest.raises(
        TypeError, match=r"step returned a 'RaggedTensor'; a step return"
    ):
        repl_once.run(step)


@pytest.mark.parametrize("step_fn", [tf.constant(1.0), "step", None])
def test_what_cannot_be_called_is_no_step(repl_once, step_fn):
    """Mostly it is what the step returns."""
    with pytest.raises(TypeError, match=r"run\(\) takes a step function, but got a '"):
        repl_once.run(step_fn)


def test_a_step_without_the_inputs_that_it_takes(repl_once):
    """The message says where inputs come from."""

    def step(batch):
        return batch

    with pytest.raises(
        TypeError, match=r"step '.*step' takes arguments, but run\(\) go"
    ):
        repl_once.run(step)


def test_arguments_by_position_are_refused_too(repl_once):
    """run(step, x, y) is not run(step, (x, y))."""
    values = replicator.PerReplica([1.0] * repl_once.num_replicas)

    with pytest.raises(
        TypeError, match=r"run\(\) does not take 1 extra arguments; write"
    ):
        repl_once.run(lambda batch: batch, values, values)


def test_a_coordinators_spelling_is_refused():
    """coordinator.schedule(step, args=(iterator,)) has another shape here."""
    with pytest.raises(
        TypeError,
        match=r"schedule\(\) does not take args=, kwargs=; write repl.schedule",
    ):
        user_functions.check_no_more("schedule", (), {"args": (1,), "kwargs": {}})


@pytest.mark.parametrize(
    "step_fn",
    [
        tf.identity,
        tf.function(lambda x: x),
        lambda *batch: batch[0],
        lambda x, y=1: x,
        abs,
    ],
)
def test_steps_of_every_kind_of_signature_are_taken(repl_once, step_fn):
    """Also those of builtins and of tf.functions."""
    values = replicator.PerReplica([1.0] * repl_once.num_replicas)

    assert 1.0 == float(repl_once.run(step_fn, values)[0])


def test_an_audit_asks_for_the_same_kind_of_function(repl_once):
    """It calls it as make_input_iterator does."""
    with pytest.raises(
        TypeError, match=r"audit_inputs\(\) takes a function that returns"
    ):
        repl_once.audit_inputs(tf.data.Dataset.range(3), key_fn=lambda x: x)
