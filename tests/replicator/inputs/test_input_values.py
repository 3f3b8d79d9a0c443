"""Values of one step: dense, ragged, sparse, and what is none of them."""

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


def _same(repl, value):
    return replicator.PerReplica([value] * repl.num_replicas)


def _step(batch):
    return batch


def _ragged_step():
    return tf.ragged.constant([[1], [2, 3]])


_NOT_CALLED = r"run\(\) takes a step function, but got a '"
_NO_TENSOR = r"inputs must be tensors \(dense, ragged.*, but got .*; "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda repl: repl.run(tf.identity, _same(repl, object())), _NO_TENSOR),
        # None is what a step without a result returned.
        (lambda repl: repl.run(tf.identity, _same(repl, None)), _NO_TENSOR),
        (
            lambda repl: repl.run(_ragged_step),
            r"_ragged_step returned a 'RaggedTensor'; a step return",
        ),
        (lambda repl: repl.run(tf.constant(1.0)), _NOT_CALLED),
        (lambda repl: repl.run("step"), _NOT_CALLED),
        (lambda repl: repl.run(None), _NOT_CALLED),
        (
            lambda repl: repl.run(_step),
            r"step '.*step' takes arguments, but run\(\) go",
        ),
        # run(step, x, y) is not run(step, (x, y)).
        (
            lambda repl: repl.run(_step, _same(repl, 1.0), _same(repl, 1.0)),
            r"run\(\) does not take 1 extra arguments; write",
        ),
        # It calls the function as make_input_iterator does.
        (
            lambda repl: repl.audit_inputs(tf.data.Dataset.range(3), key_fn=_step),
            r"audit_inputs\(\) takes a function that returns",
        ),
    ],
    ids=[
        "an object",
        "nothing",
        "a ragged result",
        "a tensor as step",
        "a name as step",
        "no step",
        "no inputs",
        "several inputs",
        "a dataset as function",
    ],
)
def test_what_is_no_step_and_no_value_is_refused(repl_once, call, message):
    with pytest.raises(TypeError, match=message):
        call(repl_once)


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
    values = replicator.PerReplica([1.0] * repl_once.num_replicas)

    assert 1.0 == float(repl_once.run(step_fn, values)[0])
