"""Batches that wait on the devices of replicas, and what is left for the last step."""

import contextlib

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode

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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_is_divided(kind):
    repl = replicator.create("in_graph", num_replicas=4)
    alone = repl.make_input_iterator(_batches(KINDS[kind], 2), PER_REPLICA)
    rows = _dense(KINDS[kind])
    apart = [[_dense(part) for part in batch] for batch in alone]

    for size, lengths in ((2, [[2, 2, 2, 1]]), (1, [[1, 1, 1, 1], [0, 1, 1, 1]])):
        inputs = repl.make_input_iterator(_batches(KINDS[kind], size))
        steps = [[_dense(part) for part in batch] for batch in inputs]
        assert rows == [row for step in steps for part in step for row in part]
        assert lengths == [list(map(len, step)) for step in steps]
    assert sorted(map(str, rows)) == sorted(
        str(row) for step in apart for part in step for row in part
    )


def test_batches_of_a_fixed_size_or_without_examples(in_graph):
    """The first end with the last whole step, as they do under a stock strategy."""
    fixed = _batches(tf.range(100), 8, drop_remainder=True)
    numbers = tf.data.Dataset.range(6).batch(1)
    filtered = numbers.map(lambda x: tf.boolean_mask(x, (x < 2) | (x > 3)))

    for input_fn, expected in ((fixed, [16] * 6), (lambda _: filtered, [2, 0, 2])):
        inputs = in_graph.make_input_iterator(input_fn)
        assert expected == _counts(in_graph, inputs)


def test_one_step_takes_inputs_of_every_kind():
    repl = replicator.create("in_graph", num_replicas=2, devices=["CPU:0", "CPU:1"])
    made = [
        repl.make_input_iterator(
            _batches(tf.range(12), 2, drop_remainder=is_fixed),
            mode,
            prefetch_to_device=num_batches,
        )
        for is_fixed, mode, num_batches in (
            (False, PER_REPLICA, 0),
            (False, PER_REPLICA, 2),
            (True, InputReplicationMode.SINGLE, 0),
            (True, InputReplicationMode.SINGLE, 2),
            (False, InputReplicationMode.PER_WORKER, 2),
        )
    ]

    for inputs in made:
        assert [4, 4, 4] == _counts(repl, inputs)


ROWS = tf.data.Dataset.from_tensor_slices(tf.ones([6, 2]))
NUMBERS = tf.data.Dataset.range(3)


@pytest.mark.parametrize(
    ("batches", "num_steps"),
    [
        (ROWS.batch(2), 2),
        (ROWS.map(lambda x: {"a": x}).batch(2), 2),
        (ROWS.batch(2).map(lambda x: (tf.RaggedTensor.from_tensor(x), x)), 2),
        (ROWS.batch(2, drop_remainder=True), 1),
        (ROWS.batch(2).map(lambda x: tf.ensure_shape(x, [2, None])), 1),
        (NUMBERS, 1),
        (NUMBERS.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)), 1),
        (ROWS.batch(2).map(lambda x: (x, tf.ones([4]))), 1),
        (ROWS.window(2), 1),
    ],
)
def test_only_batches_of_any_size_can_be_divided(batches, num_steps):
    repl = replicator.create("in_graph", num_replicas=2)

    assert num_steps == len(list(repl.make_input_iterator(lambda _: batches)))


DEVICES = ["CPU:0", "CPU:1"]


def numbered(num_batches):
    def input_fn(ctx):
        start = 100 * ctx.input_pipeline_id
        return tf.data.Dataset.range(start, start + num_batches)

    return input_fn


def read(inputs, num_steps):
    return [[int(value) for value in inputs.get_next()] for _ in range(num_steps)]


@pytest.fixture(scope="module")
def on_two_devices():
    return replicator.create("in_graph", num_replicas=2, devices=DEVICES)


@pytest.mark.parametrize("mode", InputReplicationMode)
def test_each_batch_waits_on_the_device_of_its_replica(on_two_devices, mode):
    """A stock strategy prefetches in its own way."""
    repl = on_two_devices
    stock = replicator.create("tf_mirrored", num_replicas=2, devices=DEVICES)
    plain = repl.make_input_iterator(numbered(8), mode)
    ahead, others = (
        each.make_input_iterator(numbered(8), mode, prefetch_to_device=2)
        for each in (repl, stock)
    )

    batch = ahead.get_next()

    assert list(repl.devices) == [value.device for value in batch]
    expected = read(plain, 3)
    assert expected == [[int(value) for value in batch], *read(ahead, 2)]
    assert expected == read(others, 3)


def test_a_pipeline_works_ahead_of_the_steps():
    repl = replicator.create("in_graph", num_replicas=2)
    num_read = {}

    def counting(name):
        def input_fn(_):
            counter = num_read[name] = tf.Variable(0, dtype=tf.int64)
            data = tf.data.Dataset.range(100)
            options = tf.data.Options()
            # tf.data may put a small buffer of its own at the end of a pipeline.
            options.experimental_optimization.inject_prefetch = False
            return data.map(lambda x: x + 0 * counter.assign_add(1)).with_options(
                options
            )

        return input_fn

    plain = repl.make_input_iterator(counting("plain"))
    ahead = repl.make_input_iterator(counting("ahead"), prefetch_to_device=3)
    assert [[0, 1]] == read(plain, 1) == read(ahead, 1)
    while int(num_read["ahead"]) < 2 + 3 * 2:  # a thread fills the buffer
        pass

    assert 2 == int(num_read["plain"])


def test_a_number_of_batches_that_makes_no_sense(on_two_devices):
    for wrong in (-1, True, "2", 1.5):
        with pytest.raises(
            ValueError, match=r"prefetch_to_device .* .batches to prefetch"
        ):
            on_two_devices.make_input_iterator(numbered(1), prefetch_to_device=wrong)
