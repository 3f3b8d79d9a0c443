"""An order that cannot be repeated is not continued in the middle of an epoch."""

import pytest
import tensorflow as tf

import replicator
from replicator._tf import data as _tf_data
from replicator.errors import CheckpointMismatchError


def _nested(seed):
    def part(index):
        del index
        return tf.data.Dataset.range(12).shuffle(12, seed=seed)

    return tf.data.Dataset.range(4).flat_map(part)


MAKERS = {
    "outside": lambda seed: tf.data.Dataset.range(48).shuffle(48, seed=seed),
    "inside": _nested,
}


@pytest.fixture(autouse=True)
def _unseeded():
    """A seed of the whole program would seed every shuffle."""
    tf.random.set_seed(None)


def _saved_and_new(make, seed, folder):
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


def _examples(batches):
    return [int(i) for batch in batches for part in batch for i in part]


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
    assert 48 == len(_examples(others))


def test_a_seeded_shuffle_is_continued(tmp_path):
    make = MAKERS["outside"]
    (inputs, saver), (others, restorer) = _saved_and_new(make, 3, tmp_path)
    first = _examples([next(inputs)])
    saver.save(1)

    restorer.restore()

    assert list(range(48)) == sorted(first + _examples(others))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("where", MAKERS)
def test_shuffles_without_a_seed_are_found(where, seed):
    """Also behind a batch, in a function, and beside constants of other values."""
    dataset = MAKERS[where](seed).map(lambda i: i + 0).batch(4)

    assert (seed is None) == _tf_data.shuffles_at_random(dataset)
