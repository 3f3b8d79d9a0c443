"""The position of the inputs: no example of an epoch is repeated or lost."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, errors


def _reader(
    num_replicas, mode, make_dataset, *, global_batch_size=8, drop_remainder=False
):
    """A replicator that only reads, with one step variable to save."""
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    with repl.context():
        variable = tf.Variable(0, trainable=False)

    def input_fn(ctx):
        data = make_dataset().shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        size = ctx.get_per_replica_batch_size(global_batch_size)
        return data.batch(size, drop_remainder=drop_remainder)

    inputs = repl.make_input_iterator(input_fn, mode)

    def read(num_steps):
        steps = [repl.run(tf.identity, inputs) for _ in range(num_steps)]
        return [int(x) for parts in steps for part in parts for x in part.numpy()]

    def manager(directory):
        return repl.make_checkpoint_manager(directory, inputs=inputs, step=variable)

    return read, manager, inputs


@pytest.mark.parametrize("mode", list(InputReplicationMode))
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_no_example_of_the_epoch_is_repeated_or_lost(tmp_path, mode, num_replicas):
    """Four replicas read two steps, others the rest: every example once."""

    def data():
        return tf.data.Dataset.range(40).shuffle(40, seed=3)

    read, manager, _ = _reader(4, mode, data)
    first = read(2)
    manager(tmp_path).save(2)
    read, manager, inputs = _reader(num_replicas, mode, data)

    manager(tmp_path).restore()

    assert list(range(40)) == sorted(first + read(3))
    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    assert 5 == inputs.num_steps


@pytest.mark.parametrize("first", ["next", "run"])
def test_batches_of_next_and_of_run_are_one_position(tmp_path, first):
    """Whichever of them read before the save and after the restore."""
    data = functools.partial(tf.data.Dataset.range, 40)
    mode = InputReplicationMode.PER_WORKER

    def by_next(inputs):
        return [int(x) for part in next(inputs) for x in part.numpy()]

    read, manager, inputs = _reader(2, mode, data)
    before = by_next(inputs) if first == "next" else read(1)
    before += read(1) if first == "next" else by_next(inputs)
    manager(tmp_path).save(2)
    read, manager, inputs = _reader(2, mode, data)

    manager(tmp_path).restore()

    assert 2 == inputs.num_steps
    rest = [int(x) for batch in inputs for part in batch for x in part.numpy()]
    assert list(range(40)) == before + rest
    assert 5 == inputs.num_steps


def test_a_position_that_was_reached_by_skipping_is_saved_exactly(tmp_path):
    """4 replicas, then 2, then 2 again: the iterators of the second are restored."""
    data = functools.partial(tf.data.Dataset.range, 48)
    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(4, mode, data)
    got = read(2)
    manager(tmp_path).save(2)
    read, manager, _ = _reader(2, mode, data)
    manager(tmp_path).restore()
    got += read(1)
    manager(tmp_path).save(3)
    read, manager, inputs = _reader(2, mode, data)

    restored = manager(tmp_path).restore()

    assert list(range(48)) == got + read(3)
    assert restored.input_position.startswith("exact")
    assert 6 == inputs.num_steps


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_later_epochs_keep_the_order_of_their_shuffles(tmp_path, num_replicas):
    """Saved in the second epoch: its rest and the third are as without stopping."""
    mode = InputReplicationMode.PER_WORKER

    def data():
        return tf.data.Dataset.range(24).shuffle(24, seed=3)

    def epoch(read, inputs):
        inputs.reinitialize()
        return read(3)

    read, _, inputs = _reader(4, mode, data)
    expected = [read(3), epoch(read, inputs), epoch(read, inputs)]
    read, manager, inputs = _reader(4, mode, data)
    read(3)
    inputs.reinitialize()
    begun = read(1)
    manager(tmp_path).save(4)
    read, manager, inputs = _reader(num_replicas, mode, data)
    manager(tmp_path).restore()
    rest, following = read(2), epoch(read, inputs)

    assert expected[1:] == [begun + rest, following]
    assert expected[0] != expected[1] != expected[2]


def test_data_whose_state_cannot_be_saved_is_read_again_and_says_so(tmp_path):
    """A Python generator has no state to save: its elements are skipped."""

    def make():
        return tf.data.Dataset.from_generator(
            lambda: iter(range(32)), output_signature=tf.TensorSpec([], tf.int64)
        )

    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(2, mode, make)
    read(2)
    manager(tmp_path).save(2)
    read, manager, _ = _reader(2, mode, make)

    restored = manager(tmp_path).restore()

    assert "skipping the 2 steps that were read (PyFunc is stateful." in (
        restored.input_position
    )
    assert list(range(16, 32)) == read(2)


def test_the_end_of_the_data_is_a_position_too(tmp_path):
    """Saved after the epoch, restored on another number of replicas: still over."""
    data = functools.partial(tf.data.Dataset.range, 16)
    read, manager, _ = _reader(4, InputReplicationMode.PER_WORKER, data)
    read(2)
    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    manager(tmp_path).save(2)
    read, manager, inputs = _reader(2, InputReplicationMode.PER_WORKER, data)
    manager(tmp_path).restore()

    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    inputs.reinitialize()

    assert list(range(16)) == read(2)


def test_another_global_batch_continues_at_the_same_example(tmp_path):
    """Three steps of 8 are two of 12; 24 is not divisible by 16."""
    data = functools.partial(tf.data.Dataset.range, 96)

    def make(num_replicas, size):
        return _reader(
            num_replicas,
            InputReplicationMode.PER_WORKER,
            data,
            global_batch_size=size,
            drop_remainder=True,
        )

    read, manager, _ = make(4, 8)
    read(3)
    manager(tmp_path).save(3)
    read, manager, _ = make(2, 12)
    manager(tmp_path).restore()

    assert list(range(24, 36)) == read(1)
    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"read 3 steps of 8 examples, which is not an integer number of steps",
    ):
        make(2, 16)[1](tmp_path).restore()


def test_iterators_of_another_dataset_are_refused(tmp_path):
    """The same topology, but the input function now shuffles."""
    data = functools.partial(tf.data.Dataset.range, 32)
    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(2, mode, data)
    read(1)
    manager(tmp_path).save(1)

    with pytest.raises(
        errors.CheckpointError,
        match=r"state of the input iterators does not fit.*builds another dataset",
    ):
        _reader(2, mode, lambda: data().shuffle(4))[1](tmp_path).restore()
