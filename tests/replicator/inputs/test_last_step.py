"""What is left for the last step of an epoch is divided among the replicas."""

import contextlib

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode
from replicator.inputs import last_step

PER_REPLICA = InputReplicationMode.PER_REPLICA
KINDS = {
    "dense": tf.reshape(tf.range(14.0), [7, 2]),
    "strings": tf.strings.as_string(tf.range(7)),
    "ragged": tf.ragged.constant([[0], [1, 1], [], [3], [4, 4, 4], [5], [6]]),
    "rags of rags": tf.ragged.constant([[[0], []], [[1]], [], [[3]], [], [[5]], [[6]]]),
    "sparse": tf.sparse.from_dense(tf.reshape(tf.range(14), [7, 2])),
}


def _dense(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.numpy().tolist()


def _batches(values, size, **options):
    def input_fn(ctx):
        examples = tf.data.Dataset.from_tensor_slices(values)
        own = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return own.batch(size, **options)

    return input_fn


def _count(batch):
    return replicator.all_sum(tf.shape(batch)[0])


def _epoch(run):
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            yield run()


def _counts(repl, inputs):
    return [int(total[0]) for total in _epoch(lambda: repl.run(_count, inputs))]


@pytest.mark.parametrize("loop", [False, True])
def test_an_epoch_that_does_not_fill_its_last_step_is_whole(in_graph, loop):
    """Of 100 examples at a global batch of 16, 96 were counted, or the loop died."""
    inputs = in_graph.make_input_iterator(_batches(tf.range(100), 8))
    traced = []

    def step(batch):
        traced.append(1)
        return _count(batch), tf.shape(batch)[0]

    for _ in range(2):
        if loop:
            outputs = [in_graph.run(step, batch) for batch in inputs]
        else:
            outputs = list(_epoch(lambda: in_graph.run(step, inputs)))

        assert [16] * 6 + [4] == [int(total[0]) for total, _ in outputs]
        assert [2, 2] == [int(size) for size in outputs[-1][1]]
        assert 7 == inputs.num_steps
        inputs.reinitialize()
    assert 1 == len(traced)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_is_divided(kind):
    """Into parts that differ by one, in order; a pipeline at its end gives none."""
    repl = replicator.create("in_graph", num_replicas=4)
    inputs = repl.make_input_iterator(_batches(KINDS[kind], 2))
    alone = repl.make_input_iterator(_batches(KINDS[kind], 2), PER_REPLICA)
    rows = _dense(KINDS[kind])

    steps = [[_dense(part) for part in batch] for batch in inputs]
    apart = [[_dense(part) for part in batch] for batch in alone]

    assert rows == [row for step in steps for part in step for row in part]
    assert [[2, 2, 2, 1]] == [list(map(len, step)) for step in steps]
    assert sorted(map(str, rows)) == sorted(
        str(row) for step in apart for part in step for row in part
    )


def test_steps_of_one_dispatch_end_with_the_last_example(in_graph):
    """Two steps of 16 at once: the last dispatch has one step only, and raises."""
    inputs = in_graph.make_input_iterator(_batches(tf.range(36), 8))
    with in_graph.context():
        total = tf.Variable(0, trainable=False)

    def step(batch):
        return total.assign_add(_count(batch))

    outputs = list(_epoch(lambda: in_graph.run(step, inputs, num_steps=2)))

    assert [32] == [int(value[0]) for value in outputs]
    assert 36 == total.numpy()


def test_batches_of_a_fixed_size_end_with_the_last_whole_step(in_graph):
    """As they do under a stock strategy: there is no batch for the second replica."""
    inputs = in_graph.make_input_iterator(
        _batches(tf.range(100), 8, drop_remainder=True)
    )
    scalars = in_graph.make_input_iterator(lambda _: tf.data.Dataset.range(5))

    assert [16] * 6 == _counts(in_graph, inputs)
    assert [[0, 1], [2, 3]] == [[int(x) for x in batch] for batch in scalars]


def test_a_batch_without_examples_is_no_end(in_graph):
    """A pipeline that filters its batches can have empty ones in the middle."""
    inputs = in_graph.make_input_iterator(
        lambda _: (
            tf.data.Dataset.range(6)
            .batch(1)
            .map(lambda x: tf.boolean_mask(x, (x < 2) | (x > 3)))
        )
    )

    assert [2, 0, 2] == _counts(in_graph, inputs)


def test_the_last_step_follows_a_restored_position(in_graph, tmp_path):
    """Exactly, whether its iterator was saved or its steps are skipped."""
    with in_graph.context():
        weight = tf.Variable(1.0)

    def manager():
        inputs = in_graph.make_input_iterator(_batches(tf.range(36), 8))
        return inputs, in_graph.make_checkpoint_manager(
            tmp_path, inputs=inputs, weight=weight
        )

    inputs, saver = manager()
    in_graph.run(_count, inputs)
    saver.save(1)
    again, restorer = manager()

    assert restorer.restore().input_position.startswith("exact")
    assert [16, 4] == _counts(in_graph, again)
    again.start(2)
    assert [4] == _counts(in_graph, again)


def test_one_step_takes_inputs_of_every_kind():
    """Plain and then prefetched ones of one type are read by other iterators."""
    repl = replicator.create("in_graph", num_replicas=2, devices=["CPU:0", "CPU:1"])
    made = [
        repl.make_input_iterator(
            _batches(tf.range(12), 2, drop_remainder=is_fixed),
            mode,
            prefetch_to_device=num_batches,
        )
        for is_fixed in (False, True)
        for mode in InputReplicationMode
        for num_batches in (0, 2)
    ]

    for inputs in made:
        assert [4, 4, 4] == _counts(repl, inputs)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (tf.TensorSpec([None, 2]), True),
        ({"a": tf.TensorSpec([None]), "b": tf.RaggedTensorSpec([None, None])}, True),
        (tf.TensorSpec([2, None]), False),
        (tf.TensorSpec([]), False),
        (tf.TensorSpec(None), False),
        ((tf.TensorSpec([None]), tf.TensorSpec([4])), False),
        (tf.data.DatasetSpec(tf.TensorSpec([None])), False),
    ],
)
def test_only_batches_of_any_size_can_be_divided(spec, expected):
    """A component without rows, or with a fixed number, cannot be empty."""
    assert expected == last_step.can_fill(spec)
