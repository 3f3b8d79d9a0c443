"""What pipelines say of the examples in their batches."""

import pytest
import tensorflow as tf

import replicator
from replicator import InputContext
from replicator.checkpoint import division
from replicator.checkpoint.division import Division
from replicator.inputs.context import InputReplicationMode
from replicator.inputs.iterator import InputIterator

CTX = InputContext(num_replicas_in_sync=2)


def data():
    return tf.data.Dataset.range(12)


def dealt():
    return data().shard(2, 0)


def split():
    """Global batches of eight, of which a replica has four."""
    return replicator.split_global_batches(data(), CTX, 8)


DEALT = {"is_dealt": True, "num_dealt": 12}
JOINED = {"joined": (4,), "num_joining": 12}
BOTH = {**DEALT, "joined": (4,), "num_joining": 6}
GLOBAL = {"joined": (4,), "is_global": True, "num_dealt": 12}
PIPELINES = {
    "single examples": (data, {}),
    "shards of batches": (lambda: dealt().batch(4), BOTH),
    "what keeps order": (
        lambda: (
            dealt()
            .map(tf.identity, num_parallel_calls=2)
            .batch(4, num_parallel_calls=2)
            .cache()
            .map(tf.identity)
            .take(3)
            .enumerate()
            .prefetch(1)
            .with_options(replicator.default_data_options())
        ),
        BOTH,
    ),
    "before it is divided": (
        lambda: data().shuffle(9, seed=1).filter(lambda x: x >= 0).repeat().batch(4),
        {"joined": (4,), "num_joining": float("inf")},
    ),
    "of an unknown size": (
        lambda: data().filter(lambda x: x > 2).batch(4),
        {"joined": (4,), "num_joining": None},
    ),
    "shuffled shards": (
        lambda: dealt().shuffle(3, seed=1).batch(4).repeat(),
        {**BOTH, "after_dealing": ("Shuffle", "Repeat"), "after_joining": ("Repeat",)},
    ),
    "skipped batches": (
        lambda: data().padded_batch(4).skip(1),
        {**JOINED, "after_joining": ("Skip",)},
    ),
    "batches of batches": (
        lambda: data().batch(2).batch(2),
        {"joined": (2, 2), "num_joining": 12},
    ),
    "dealt batches": (
        lambda: data().batch(4).shard(2, 0),
        {**JOINED, **DEALT, "num_at_once": 4},
    ),
    "batches that are dealt two at a time": (
        lambda: data().batch(2).batch(2).shard(2, 0).unbatch(),
        {**DEALT, "num_at_once": 4, "joined": (2,), "num_joining": 12},
    ),
    "files that are dealt": (
        lambda: dealt().interleave(tf.data.Dataset.range).batch(4),
        {
            **DEALT,
            "joined": (4,),
            "num_joining": None,
            "after_dealing": ("Interleave",),
        },
    ),
    "batches that are taken apart": (
        lambda: data().batch(6).unbatch().batch(4),
        {"joined": (4,), "num_joining": None},
    ),
    "batches side by side": (
        lambda: tf.data.Dataset.zip((data().batch(4), data().batch(4))),
        JOINED,
    ),
    "batches that differ": (
        lambda: tf.data.Dataset.zip((data().batch(4), data().batch(3))),
        {"joined": None, "num_joining": 12},
    ),
    "global batches": (lambda: split().map(tf.identity).prefetch(2), GLOBAL),
    "repeated global batches": (
        lambda: split().repeat(),
        {**GLOBAL, "after_dealing": ("Repeat",), "after_joining": ("Repeat",)},
    ),
    "global batches taken apart": (
        lambda: split().unbatch().batch(3),
        {
            **DEALT,
            "joined": (3,),
            "num_joining": None,
            "after_dealing": ("Unbatch",),
        },
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_says_how_its_examples_are_divided(name):
    """How many a batch has, and what follows on examples that are divided."""
    make, facts = PIPELINES[name]
    inputs = InputIterator(lambda _: make(), InputReplicationMode.SINGLE, 2)

    assert Division(**facts) == division.of(inputs)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: data().batch(4), 4),
        (lambda: data().batch(4, drop_remainder=True), 4),
        (data, 1),
        (lambda: tf.data.Dataset.from_tensors(tf.zeros([5, 2])), 5),
        (
            lambda: tf.data.Dataset.from_tensors(
                tf.RaggedTensor.from_row_lengths([1], [1])
            ),
            1,
        ),
        (split, 4),
        (
            lambda: data().batch(4).unbatch().window(2).flat_map(lambda w: w.batch(2)),
            None,
        ),
    ],
)
def test_examples_of_a_batch_are_known_or_said_to_be_unknown(make, expected):
    """By batches, or by the shape of the elements."""
    inputs = InputIterator(lambda _: make(), InputReplicationMode.SINGLE, 2)

    found = division.examples_per_element(division.of(inputs), inputs.element_spec)

    assert expected == found
