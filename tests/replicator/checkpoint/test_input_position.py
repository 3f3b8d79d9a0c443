"""The position of the inputs: no example of an epoch is repeated or lost."""

import functools

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, errors
from replicator._tf import data as _tf_data
from replicator.errors import CheckpointMismatchError


def count(num_examples):
    return functools.partial(tf.data.Dataset.range, num_examples)


def shuffled(num_examples):
    return lambda: tf.data.Dataset.range(num_examples).shuffle(num_examples, seed=3)


def generated():
    return tf.data.Dataset.from_generator(
        lambda: iter(range(32)), output_signature=tf.TensorSpec([], tf.int64)
    )


class Reader:
    """A replicator that only reads, with one variable to save."""

    def __init__(
        self,
        folder,
        num_replicas,
        make_dataset,
        mode=InputReplicationMode.PER_WORKER,
        *,
        global_batch_size=8,
        global_batches=False,
        **batching,
    ):
        self.repl = replicator.create("in_graph", num_replicas=num_replicas)

        def input_fn(ctx):
            if global_batches:
                return replicator.split_global_batches(
                    make_dataset(), ctx, global_batch_size
                )
            data = make_dataset().shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
            size = ctx.get_per_replica_batch_size(global_batch_size)
            return data.batch(size, **batching)

        with self.repl.context():
            self.variable = tf.Variable(0, trainable=False)
        self._folder = folder
        self.follow(input_fn, mode)

    def follow(self, input_fn, mode):
        self.inputs = self.repl.make_input_iterator(input_fn, mode)
        self._manager = self.repl.make_checkpoint_manager(
            self._folder, inputs=self.inputs, step=self.variable
        )

    def read(self, num_steps=1):
        steps = [self.repl.run(tf.identity, self.inputs) for _ in range(num_steps)]
        return [int(x) for parts in steps for part in parts for x in part.numpy()]

    def save(self):
        self._manager.save(self.inputs.num_steps)

    def restore(self):
        return self._manager.restore().input_position


@pytest.fixture
def make(tmp_path):
    return functools.partial(Reader, tmp_path)


@pytest.mark.parametrize("mode", list(InputReplicationMode))
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_no_example_of_the_epoch_is_repeated_or_lost(make, mode, num_replicas):
    """Four replicas read two steps, others the rest: every example once."""
    before = make(4, shuffled(40), mode)
    first = before.read(2)
    before.save()
    after = make(num_replicas, shuffled(40), mode)

    after.restore()

    assert list(range(40)) == sorted(first + after.read(3))
    with pytest.raises(tf.errors.OutOfRangeError):
        after.read()
    assert 5 == after.inputs.num_steps


@pytest.mark.parametrize("first", ["next", "run"])
def test_batches_of_next_and_of_run_are_one_position(make, first):
    """Whichever of them read before the save and after the restore."""
    reader = make(2, count(40))

    def by_next():
        return [int(x) for part in next(reader.inputs) for x in part.numpy()]

    found = by_next() if first == "next" else reader.read()
    found += reader.read() if first == "next" else by_next()
    reader.save()
    reader = make(2, count(40))

    reader.restore()

    assert 2 == reader.inputs.num_steps
    found += [int(x) for batch in reader.inputs for part in batch for x in part.numpy()]
    assert list(range(40)) == found
    assert 5 == reader.inputs.num_steps


def test_a_position_that_was_reached_by_skipping_is_saved_exactly(make):
    """4 replicas, then 2, then 2 again: the iterators of the second are restored."""
    found, how = [], []
    for num_replicas, num_steps in ((4, 2), (2, 1), (2, 3)):
        reader = make(num_replicas, count(48))
        how.append(reader.restore() if found else "")
        found += reader.read(num_steps)
        reader.save()

    assert list(range(48)) == found
    assert how[2].startswith("exact")
    assert 6 == reader.inputs.num_steps


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_later_epochs_keep_the_order_of_their_shuffles(make, num_replicas):
    """Saved in the second epoch: its rest and the third are as without stopping."""

    def epoch(reader):
        reader.inputs.reinitialize()
        return reader.read(3)

    whole = make(4, shuffled(24))
    expected = [whole.read(3), epoch(whole), epoch(whole)]
    before = make(4, shuffled(24))
    before.read(3)
    before.inputs.reinitialize()
    begun = before.read()
    before.save()
    after = make(num_replicas, shuffled(24))
    after.restore()

    assert expected[1:] == [begun + after.read(2), epoch(after)]
    assert expected[0] != expected[1] != expected[2]


def test_data_whose_state_cannot_be_saved_is_read_again_and_says_so(make):
    """Its elements are skipped."""
    before = make(2, generated)
    before.read(2)
    before.save()
    after = make(2, generated)

    how = after.restore()

    assert "skipping the 2 steps that were read (PyFunc is stateful." in how
    assert list(range(16, 32)) == after.read(2)


def test_the_end_of_the_data_is_a_position_too(make):
    """Saved after the epoch, restored on another number of replicas: still over."""
    before = make(4, count(16))
    before.read(2)
    with pytest.raises(tf.errors.OutOfRangeError):
        before.read()
    before.save()
    after = make(2, count(16))
    after.restore()

    with pytest.raises(tf.errors.OutOfRangeError):
        after.read()
    after.inputs.reinitialize()

    assert list(range(16)) == after.read(2)


def test_an_end_that_was_reached_by_skipping_is_saved_and_restored(make):
    """Of 13 examples, 3 steps of 6 have read all, and no step follows on 3 replicas."""
    make_here = functools.partial(make, global_batch_size=6, global_batches=True)
    before = make_here(2, count(13))
    before.read(3)
    before.save()
    for _ in range(3):
        after = make_here(3, count(13))
        how = after.restore()
        after.save()

    assert how.startswith("exact")
    assert 3 == after.inputs.num_steps
    with pytest.raises(tf.errors.OutOfRangeError):
        after.read()
    after.inputs.reinitialize()
    assert list(range(13)) == after.read(3)


def test_another_global_batch_continues_at_the_same_example(make):
    """Three steps of 8 are two of 12; 24 is not divisible by 16."""
    before, after, wrong = (
        make(n, count(96), global_batch_size=size, drop_remainder=True)
        for n, size in ((4, 8), (2, 12), (2, 16))
    )
    before.read(3)
    before.save()
    after.restore()

    assert list(range(24, 36)) == after.read()
    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"read 3 steps of 8 examples, which is not an integer number of steps",
    ):
        wrong.restore()


@pytest.mark.parametrize("mode", list(InputReplicationMode))
@pytest.mark.parametrize("how", ["batch", "split_global_batches"])
def test_batches_of_unknown_size_continue_at_the_same_example(make, how, mode):
    """From 2 x 4 to 4 x 4 and back to 1 x 4, to the last, smaller step.

    Before, 4 steps of 8 examples became 4 of 16.
    """
    found = []
    splits = how == "split_global_batches"
    for num_replicas, num_steps in ((2, 4), (4, 1), (1, 3)):
        reader = make(
            num_replicas,
            shuffled(58),
            mode,
            global_batch_size=4 * num_replicas,
            global_batches=splits,
        )
        if found:
            reader.restore()
        found += reader.read(num_steps)
        reader.save()

    assert list(range(58)) == sorted(found)
    assert 15 == reader.inputs.num_steps


def test_another_batch_on_the_same_replicas_continues_at_the_same_example(make):
    """Its iterators have other states: 2 steps of 8 are 4 of 4, and saved as such."""
    found = []
    for size, num_steps in ((8, 2), (4, 1), (4, 4)):
        reader = make(2, count(36), global_batch_size=size)
        if found:
            reader.restore()
        found += reader.read(num_steps)
        reader.save()

    assert list(range(36)) == found
    assert 9 == reader.inputs.num_steps


def test_a_position_that_cannot_be_found_changes_nothing(make):
    """Shuffled shards: other pipelines would read other examples first."""

    def input_fn(ctx):
        data = tf.data.Dataset.range(40)
        data = data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return data.shuffle(20, seed=1).batch(ctx.get_per_replica_batch_size(8))

    before = make(2, count(8))
    after = make(4, count(8))
    for reader in (before, after):
        reader.follow(input_fn, InputReplicationMode.PER_REPLICA)
    before.read(2)
    before.variable.assign(7)
    before.save()

    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"had read 2 steps of 2 replicas, which .* Shuffle follows on shard\(",
    ):
        after.restore()
    assert 0 == int(after.variable)


def test_iterators_of_another_dataset_are_refused(make):
    """The same topology, but the input function now shuffles."""
    before = make(2, count(32))
    before.read()
    before.save()

    with pytest.raises(
        errors.CheckpointError,
        match=r"state of the input iterators does not fit.*builds another dataset",
    ):
        make(2, shuffled(32)).restore()


def _nested(seed):
    def part(index):
        del index
        return tf.data.Dataset.range(12).shuffle(12, seed=seed)

    return tf.data.Dataset.range(4).flat_map(part)


MAKERS = {
    "outside": lambda seed: tf.data.Dataset.range(48).shuffle(48, seed=seed),
    "inside": _nested,
}


def _saved_and_new(make, seed, folder):
    tf.random.set_seed(None)  # a seed of the whole program would seed every shuffle
    managers = []
    for num_replicas in (2, 4):
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        with repl.context():
            weight = tf.Variable(1.0)
        inputs = repl.make_input_iterator(
            lambda ctx: make(seed).batch(ctx.get_per_replica_batch_size(8))
        )
        managers.append(
            (
                inputs,
                repl.make_checkpoint_manager(folder, inputs=inputs, weight=weight),
            )
        )
    return managers


@pytest.mark.parametrize("where", MAKERS)
def test_an_unseeded_shuffle_on_other_replicas_is_refused(where, tmp_path):
    """It lost 11 to 14 of 48 examples and did not say so."""
    (inputs, saver), (others, restorer) = _saved_and_new(MAKERS[where], None, tmp_path)
    next(inputs)
    saver.save(1)

    with pytest.raises(
        CheckpointMismatchError,
        match=r"skipped \(the topology or the size of batches has changed\), "
        r"but shuffle\(\) without a seed "
        r"draws another order.*seed=\.\.\.\), or restore with inputs=None",
    ):
        restorer.restore()
    if where == "outside":
        assert saver.restore().input_position.startswith("exact")
    else:  # TensorFlow saves no state of it, so that steps would be skipped here, too
        with pytest.raises(CheckpointMismatchError, match=r"skipped \(.*stateful"):
            saver.restore()

    # At the beginning of an epoch there is nothing to skip.
    inputs.reinitialize()
    saver.save(2)
    assert restorer.restore().input_position.startswith("by skipping the 0 steps")
    assert 48 == sum(len(part) for batch in others for part in batch)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("where", MAKERS)
def test_shuffles_without_a_seed_are_found(where, seed):
    """Also behind a batch, in a function, and beside constants of other values."""
    tf.random.set_seed(None)
    dataset = MAKERS[where](seed).map(lambda i: i + 0).batch(4)

    assert (seed is None) == _tf_data.shuffles_at_random(dataset)
