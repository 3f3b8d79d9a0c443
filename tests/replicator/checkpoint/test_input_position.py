"""The position of the inputs: no example of an epoch is repeated or lost."""

import functools
import itertools
import tempfile

import covering
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

import replicator
from replicator import CheckpointError, CheckpointMismatchError, InputReplicationMode


def count(num_examples):
    return functools.partial(tf.data.Dataset.range, num_examples)


def shuffled(num_examples):
    return lambda: tf.data.Dataset.range(num_examples).shuffle(num_examples, seed=3)


def generated():
    return tf.data.Dataset.from_generator(
        lambda: iter(range(32)), output_signature=tf.TensorSpec([], tf.int64)
    )


def sharded(data, ctx):
    return data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)


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
        input_fn=None,
        **batching,
    ):
        self.repl = replicator.create("in_graph", num_replicas=num_replicas)

        def read(ctx):
            if global_batches:
                return replicator.split_global_batches(
                    make_dataset(), ctx, global_batch_size
                )
            size = ctx.get_per_replica_batch_size(global_batch_size)
            return sharded(make_dataset(), ctx).batch(size, **batching)

        with self.repl.context():
            self.variable = tf.Variable(0, trainable=False)
        self.inputs = self.repl.make_input_iterator(input_fn or read, mode)
        self._manager = self.repl.make_checkpoint_manager(
            folder, inputs=self.inputs, step=self.variable
        )

    def read(self, num_steps=1):
        steps = [self.repl.run(tf.identity, self.inputs) for _ in range(num_steps)]
        return [int(x) for parts in steps for part in parts for x in part.numpy()]

    def next(self, num_steps=1):
        steps = [next(self.inputs) for _ in range(num_steps)]
        return values_of(steps)

    def rest(self):
        return values_of(list(self.inputs))

    def save(self):
        self._manager.save(self.inputs.num_steps)

    def restore(self):
        return self._manager.restore().input_position


def values_of(steps):
    parts = [part for leaf in tf.nest.flatten(steps) for part in leaf]
    return [int(x) for part in parts for x in tf.reshape(part, [-1])]


@pytest.fixture
def make(tmp_path):
    return functools.partial(Reader, tmp_path)


KINDS = {"whole": {"drop_remainder": True}, "partial": {}, "global": {}}
SIZES = st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 4))


@given(
    mode=st.sampled_from(list(InputReplicationMode)),
    kind=st.sampled_from(sorted(KINDS)),
    before=SIZES,
    after=SIZES,
    num_steps=st.integers(0, 9),
)
@settings(max_examples=covering.num_examples(8, 100), deadline=None, derandomize=True)
# Two steps of 8 have read all 16, which are no whole steps of 12.
@example(InputReplicationMode.PER_REPLICA, "partial", (4, 2), (4, 3), 2)
def test_every_restore_reads_each_example_once_or_is_refused(
    mode, kind, before, after, num_steps
):
    """From any replicas and batches to any others, after any step."""
    num_examples = 16

    def made(num_replicas, share):
        return Reader(
            folder,
            num_replicas,
            shuffled(num_examples) if kind == "global" else count(num_examples),
            mode,
            global_batch_size=share * num_replicas,
            global_batches=kind == "global",
            **KINDS[kind],
        )

    with tempfile.TemporaryDirectory() as folder:
        reader, other = made(*before), made(*after)
        everything = set(made(*after).rest())
        had = values_of(list(itertools.islice(reader.inputs, num_steps)))
        num_read = reader.inputs.num_steps * before[0] * before[1]
        reader.save()
        again = made(*before)
        again.restore()
        again.save()
        if len(had) < num_examples and num_read % (after[0] * after[1]):
            if reader.inputs.is_at_end:
                other.restore()
                assert [] == other.rest()
                return
            with pytest.raises(CheckpointMismatchError, match="not an integer number"):
                other.restore()
            return
        other.restore()
        rest = other.rest()

    assert len(rest) == len(set(rest))
    if not reader.inputs.is_at_end:
        assert everything - set(had) == set(rest)


def test_later_epochs_keep_the_order_of_their_shuffles(make):
    def epoch(reader):
        reader.inputs.reinitialize()
        return reader.next(3)

    whole = make(4, shuffled(24))
    expected = [whole.next(3), epoch(whole), epoch(whole)]
    before = make(4, shuffled(24))
    before.next(3)
    before.inputs.reinitialize()
    begun = before.next()
    before.save()
    after = make(2, shuffled(24))
    after.restore()

    assert expected[1:] == [begun + after.next(2), epoch(after)]
    assert expected[0] != expected[1] != expected[2]


def test_data_whose_state_cannot_be_saved_is_read_again_and_says_so(make):
    before = make(2, generated)
    before.next(2)
    before.save()
    after = make(2, generated)

    how = after.restore()

    assert "skipping the 2 steps that were read (PyFunc is stateful." in how
    assert list(range(16, 32)) == after.next(2)


def test_the_end_of_the_data_is_a_position_too(make):
    """Saved after the epoch, restored on another number of replicas: still over."""
    make_here = functools.partial(make, global_batch_size=6, global_batches=True)
    before = make_here(2, count(13))
    before.next(3)
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


def joined(transform):
    """Two batches of two on each of two replicas, of one pipeline."""
    return lambda ctx: transform(tf.data.Dataset.range(48))


def joined_by_two_or_four(transform, num_examples=48):
    """Batches of four on two replicas, or of two on four: steps of eight."""
    return lambda ctx: transform(
        tf.data.Dataset.range(num_examples), 8 // ctx.num_replicas_in_sync
    )


def dealt(transform):
    """As many of a pipeline of each replica."""
    return lambda ctx: transform(sharded(tf.data.Dataset.range(48), ctx))


def split(transform, size=4):
    return lambda ctx: transform(
        replicator.split_global_batches(
            tf.data.Dataset.range(48), ctx, size * ctx.num_replicas_in_sync
        )
    )


def repeated(num_examples):
    return lambda ctx: sharded(tf.data.Dataset.range(num_examples), ctx).repeat(3)


REFUSED = r"had read 4 steps of 2 replicas, which cannot be found in these pipelines: "
SHARD = r"follows on shard\(\) or batch\(\), so that other examples"
UNKNOWN = (
    r"do(es)? not say how many examples a step has.*"
    r"Restore on as many replicas, workers and examples per batch"
)
UNEVEN = r"repeat\(\) follows on .*do not come out even: repeat examples befo"
# What follows on 4 steps of 2 replicas where there are 4: everything else, or an error.
DIVIDED = {
    "shards": (dealt(lambda data: data), None),
    "shards of batches": (
        dealt(
            lambda data: (
                data.map(tf.identity, num_parallel_calls=2)
                .batch(2, num_parallel_calls=2)
                .cache()
                .map(tf.identity)
                .prefetch(1)
                .with_options(replicator.default_data_options())
            )
        ),
        None,
    ),
    "before it is divided": (
        joined(lambda data: data.shuffle(9, seed=1).filter(lambda x: x >= 0).batch(2)),
        None,
    ),
    "global batches": (split(lambda data: data.map(tf.identity).prefetch(2)), None),
    "batches that differ": (
        joined(lambda data: tf.data.Dataset.zip((data.batch(2), data.batch(3)))),
        UNKNOWN,
    ),
    "windows": (
        joined(lambda data: data.window(2).flat_map(lambda w: w.batch(2))),
        UNKNOWN,
    ),
    "skipped batches": (
        joined_by_two_or_four(lambda data, size: data.padded_batch(size).skip(1)),
        r"Skip follows on batch\(\)",
    ),
    "even passes": (
        joined_by_two_or_four(lambda data, size: data.batch(size).repeat(4), 12),
        None,
    ),
    "uneven passes": (
        joined_by_two_or_four(lambda data, size: data.batch(size).repeat(4), 10),
        UNEVEN,
    ),
    "shuffled shards": (
        dealt(lambda data: data.shuffle(3, seed=1).batch(2)),
        f"{REFUSED}Shuffle {SHARD}",
    ),
    "dealt batches": (
        lambda ctx: sharded(tf.data.Dataset.range(48).batch(3), ctx).unbatch(),
        rf"{REFUSED}shard\(\) deals 3 examples at once, of which a step leaves some",
    ),
    "global batches taken apart": (
        split(lambda data: data.unbatch().batch(2)),
        f"{REFUSED}Unbatch follows on",
    ),
    "repeats of shards that end unevenly": (repeated(5), UNEVEN),
    "repeats of shards of an unknown size": (
        dealt(lambda data: data.filter(lambda x: x >= 0).repeat(2)),
        f"{REFUSED}Filter {SHARD}",
    ),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_how_examples_were_divided_decides_whether_others_continue(make, name):
    """Nothing is changed where they cannot."""
    input_fn, message = DIVIDED[name]
    mode = InputReplicationMode.PER_REPLICA
    if input_fn.__qualname__.startswith("joined"):
        mode = InputReplicationMode.SINGLE
    before = make(2, None, mode, input_fn=input_fn)
    everything = before.rest()
    before.inputs.reinitialize()
    had = before.next(4)
    before.variable.assign(7)
    before.save()
    after = make(4, None, mode, input_fn=input_fn)

    if message is None:
        after.restore()
        assert sorted(everything) == sorted(had + after.rest())
        return
    with pytest.raises(CheckpointMismatchError, match=message):
        after.restore()
    assert 0 == int(after.variable)


def test_iterators_of_another_dataset_are_refused(make):
    """The same topology, but the input function now shuffles."""
    before = make(2, count(32))
    before.next()
    before.save()

    with pytest.raises(
        CheckpointError,
        match=r"state of the input iterators does not fit.*builds another dataset",
    ):
        make(2, shuffled(32)).restore()


def _nested(seed):
    return tf.data.Dataset.range(4).flat_map(
        lambda _: tf.data.Dataset.range(12).shuffle(12, seed=seed)
    )


MAKERS = {
    "outside": lambda seed: tf.data.Dataset.range(48).shuffle(48, seed=seed),
    "inside": _nested,
}


@pytest.mark.parametrize("where", MAKERS)
def test_an_unseeded_shuffle_on_other_replicas_is_refused(make, where):
    """It lost 11 to 14 of 48 examples and did not say so."""
    tf.random.set_seed(None)  # a seed of the whole program would seed every shuffle
    batching = {"mode": InputReplicationMode.SINGLE}
    seeded, others, saver, restorer = (
        make(n, functools.partial(MAKERS[where], seed), **batching)
        for n, seed in ((2, 3), (4, 3), (2, None), (4, None))
    )
    seeded.next()
    seeded.save()
    others.restore()
    saver.next()
    saver.save()

    with pytest.raises(
        CheckpointMismatchError,
        match=r"skipped \(the topology or the size of batches has changed\), "
        r"but shuffle\(\) without a seed "
        r"draws another order.*seed=\.\.\.\), or restore with inputs=None",
    ):
        restorer.restore()
    if where == "outside":
        assert saver.restore().startswith("exact")
    else:  # TensorFlow saves no state of it, so that steps would be skipped here, too
        with pytest.raises(CheckpointMismatchError, match=r"skipped \(.*stateful"):
            saver.restore()

    # At the beginning of an epoch there is nothing to skip.
    saver.inputs.reinitialize()
    saver.save()
    assert restorer.restore().startswith("by skipping the 0 steps")
    assert 48 == len(restorer.rest())
