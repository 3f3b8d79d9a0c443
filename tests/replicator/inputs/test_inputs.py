"""Input pipelines that do not fit together, and the values of one step."""

import pytest
import tensorflow as tf
from cluster_member import check_message, check_messages

import replicator
from replicator import InputReplicationMode

PER_REPLICA = InputReplicationMode.PER_REPLICA


def test_a_dimension_that_differs_between_pipelines_is_unknown(in_graph):
    inputs = in_graph.make_input_iterator(
        lambda ctx: tf.data.Dataset.from_tensors(
            tf.ones([2 + ctx.input_pipeline_id, 4])
        ),
        PER_REPLICA,
    )

    out = in_graph.run(tf.reduce_sum, inputs)

    assert [None, 4] == inputs.element_spec.shape.as_list()
    assert [8.0, 12.0] == [float(v) for v in out]


def test_pipelines_of_different_elements_are_refused(in_graph):
    def make(*elements):
        return in_graph.make_input_iterator(
            lambda ctx: tf.data.Dataset.from_tensors(elements[ctx.input_pipeline_id]),
            PER_REPLICA,
        )

    check_messages(
        {
            "^ValueError: .*pipelines 0 and 1 yield different structures:.*same": (
                lambda: make((1, 1), 1)
            ),
            # A common type would convert unnoticed.
            "^ValueError: .*pipelines 0 and 1 yield different types:.*same types": (
                lambda: make(1.0, 1)
            ),
        }
    )


@pytest.mark.parametrize(
    ("global_batch_size", "num_replicas", "hint"),
    [(7, 2, "6 or 8"), (7, 4, "4 or 8"), (3, 4, "4 or 8"), (0, 2, "2 or 4")],
)
def test_a_global_batch_that_does_not_divide_is_refused(
    global_batch_size, num_replicas, hint
):
    ctx = replicator.InputContext(num_replicas_in_sync=num_replicas)

    check_message(
        rf"^SplitBatchError: .*size {global_batch_size} is not divisible by "
        rf"num_replicas {num_replicas}: .*such as {hint}",
        lambda: ctx.get_per_replica_batch_size(global_batch_size),
    )


@pytest.mark.parametrize("backend", ["in_graph", "tf_mirrored"])
@pytest.mark.parametrize("asked", [False, True])
def test_iterators_are_tuned_only_where_asked_for(backend, asked, monkeypatch):
    """Freeing a tuned one stalls; a stock strategy's buffers are never tuned."""
    repl = replicator.create(backend, num_replicas=2, devices=["CPU:0", "CPU:1"])
    is_tuned = []
    make_iterator = tf.data.Dataset.__iter__

    def spy(dataset):
        is_tuned.append(dataset.options().autotune.enabled)
        return make_iterator(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", spy)
    options = tf.data.Options()
    if asked:
        options.autotune.enabled = True
    data = tf.data.Dataset.range(8).with_options(options)
    repl.make_input_iterator(lambda ctx: data).get_next()

    assert (backend == "in_graph" and asked) == any(is_tuned)
    assert None not in is_tuned


def _of_eleven(repl, **options):
    return repl.make_input_iterator(lambda _: tf.data.Dataset.range(11), **options)


def _read(batch):
    return [int(value) for value in batch]


def test_an_exhausted_iterator_stays_exhausted(in_graph):
    inputs = _of_eleven(in_graph)

    assert [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] == list(map(_read, inputs))
    for _ in range(2):
        assert "end" == next(inputs, "end")
        with pytest.raises(tf.errors.OutOfRangeError):
            in_graph.run(tf.identity, inputs)
    assert (5, True) == (inputs.num_steps, inputs.is_at_end)


@pytest.mark.parametrize("repl_once", [("tf_mirrored", 2)], indirect=True)
def test_a_replica_that_cancels_the_others_at_the_end_is_the_end(
    repl_once, monkeypatch
):
    """Which of the two errors a stock strategy raises is a race."""

    def cancelled(_source):
        raise tf.errors.CancelledError(None, None, "cancelled by the executor")

    monkeypatch.setattr(repl_once, "_build", lambda _: (cancelled, [None]))
    endless = repl_once.make_input_iterator(
        lambda _: tf.data.Dataset.range(11).repeat()
    )

    with pytest.raises(tf.errors.OutOfRangeError):
        repl_once.run(tf.identity, _of_eleven(repl_once))
    with pytest.raises(tf.errors.CancelledError):
        repl_once.run(lambda x: x, endless)


def _rows(rows, repl):
    return replicator.PerReplica(
        [tf.ragged.constant(rows[r % len(rows)]) for r in range(repl.num_replicas)]
    )


def test_values_of_other_lengths_and_python_numbers_are_the_same_step(repl_once):
    traced, many = [], repl_once.num_replicas

    def step(x):
        traced.append(1)
        rows, number = x
        return tf.reduce_sum(rows), rows.nrows(), number + 1

    def run(rows, number):
        values = _rows(rows, repl_once), replicator.PerReplica([number] * many)
        sums, counts, more = repl_once.run(step, values)
        assert [number + 1] * many == [float(value) for value in more]
        return [(int(s), int(c)) for s, c in zip(sums, counts, strict=True)]

    first = run([[[1, 2], [3]], [[4], [5, 6, 7]]], 1.0)
    num_traces = len(traced)
    second = run([[[1], [2, 3, 4]], [[], [5]]], 2.0)

    assert ([(6, 2), (22, 2)] * many)[:many] == first
    assert ([(10, 2), (5, 2)] * many)[:many] == second
    assert num_traces == len(traced)


def test_values_that_do_not_fit_together_are_refused(in_graph):
    for pair in (
        [tf.ragged.constant([[1]]), tf.constant([[1]])],
        [tf.zeros([2]), tf.zeros([3])],
    ):
        check_message(
            "^ValueError: inputs differ between replicas in shape or",
            lambda pair=pair: in_graph.run(tf.identity, replicator.PerReplica(pair)),
        )
    for value in (5, None, tf.sparse.from_dense([[1]])):
        check_message(
            "^TypeError: PerReplica takes a sequence with one value pe",
            lambda value=value: replicator.PerReplica(value),
        )


def test_steps_of_every_kind_of_signature_are_taken(repl_once):
    values = replicator.PerReplica([1.0] * repl_once.num_replicas)
    steps = [
        tf.identity,
        tf.function(lambda x: x),
        lambda *batch: batch[0],
        lambda x, y=1: x,
        abs,
    ]

    assert [1.0] * 5 == [float(repl_once.run(step, values)[0]) for step in steps]
