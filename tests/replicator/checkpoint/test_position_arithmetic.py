"""Positions of other replicas and batches: each example once, or refused by name."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import tensorflow as tf

import replicator
from replicator import InputContext, errors
from replicator.checkpoint import division
from replicator.checkpoint.division import Division
from replicator.checkpoint.position import Position, has_read_all, steps_here
from replicator.inputs.context import InputReplicationMode
from replicator.inputs.iterator import InputIterator

NUM_EXAMPLES = 100
SHARDED = Division(joined=(1,), is_dealt=True, num_dealt=NUM_EXAMPLES)
GLOBAL = Division(joined=(1,), is_global=True, num_dealt=NUM_EXAMPLES)
KINDS = {"whole": SHARDED, "partial": SHARDED, "global": GLOBAL}
MODES = {
    "single": lambda num_replicas, num_workers: 1,
    "per worker": lambda num_replicas, num_workers: num_workers,
    "per replica": lambda num_replicas, num_workers: num_replicas,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """Replicas that read numbers; the pipelines are lists."""

    num_replicas: int
    share: int
    num_workers: int
    mode: str
    kind: str

    @property
    def num_pipelines(self):
        return MODES[self.mode](self.num_replicas, self.num_workers)

    def steps(self):
        size, count = self.share * self.num_replicas, self.num_pipelines
        if self.kind == "global":
            starts = range(0, NUM_EXAMPLES, size)
            return [list(range(s, min(s + size, NUM_EXAMPLES))) for s in starts]
        elements = []
        for pipeline in range(count):
            mine = range(pipeline, NUM_EXAMPLES, count)
            parts = [mine[i : i + self.share] for i in range(0, len(mine), self.share)]
            if self.kind == "whole":
                parts = [part for part in parts if len(part) == self.share]
            elements.append(parts)
        in_turn = self.num_replicas // count
        num_steps = min(len(parts) // in_turn for parts in elements)
        return [
            [
                example
                for parts in elements
                for part in parts[step * in_turn : (step + 1) * in_turn]
                for example in part
            ]
            for step in range(num_steps)
        ]

    def position(self, num_steps=0, **changes):
        facts = {
            "num_steps": num_steps,
            "num_skipped": 0,
            "num_rewinds": 0,
            "num_pipelines": self.num_pipelines // self.num_workers or 1,
            "num_replicas": self.num_replicas,
            "num_workers": self.num_workers,
            "examples_per_step": self.share * self.num_replicas,
            "is_at_end": False,
            "num_input_pipelines": self.num_pipelines,
        }
        return Position(**facts | changes)


def _jobs(mode, kind):
    for num_replicas, share in itertools.product((1, 2, 4), (2, 3, 4)):
        for num_workers in (1, 2):
            if num_replicas % num_workers == 0 and (
                num_workers == 1 or mode != "single"
            ):
                yield Job(num_replicas, share, num_workers, mode, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_restore_reads_each_example_once_or_is_refused(mode, kind):
    """From any replicas, batches and workers to any others, after any step."""
    num_restores = num_refused = 0
    for before, after in itertools.product(_jobs(mode, kind), repeat=2):
        read, to_read = before.steps(), after.steps()
        everything = {example for step in to_read for example in step}
        for num_steps in range(len(read) + 1):
            num_restores += 1
            had = [example for step in read[:num_steps] for example in step]
            saved = before.position(num_steps)
            examples = num_steps * saved.examples_per_step
            is_all = set(had) == set(range(NUM_EXAMPLES))
            assert is_all == has_read_all(saved, KINDS[kind])
            if is_all:  # the next epoch begins, whatever a whole step is
                assert num_steps == steps_here(saved, after.position(), KINDS[kind])
                continue
            if num_steps and examples % after.position().examples_per_step:
                num_refused += 1
                with pytest.raises(
                    errors.CheckpointMismatchError, match="not an integer number of st"
                ):
                    steps_here(saved, after.position(), KINDS[kind])
                continue
            found = steps_here(saved, after.position(), KINDS[kind])
            rest = [example for step in to_read[found:] for example in step]
            assert everything - set(had) == set(rest), (before, after, num_steps)
            assert len(rest) == len(set(rest))
    assert 0 < num_refused < num_restores


def _division(**facts):
    return dataclasses.replace(SHARDED, **facts)


REFUSED = {
    "another batch after shuffling batches": (
        {"share": 4},
        _division(after_joining=("Shuffle",)),
        r"read 4 steps of 2 replicas, which .* Shuffle follows on shard\(\) or batch",
    ),
    "other pipelines after shuffling shards": (
        {"num_replicas": 4},
        _division(after_dealing=("Filter", "Shuffle")),
        r"Filter, Shuffle follows on shard\(\) or batch\(\), so that other examples",
    ),
    "blocks of which steps leave a part": (
        {"num_replicas": 4},
        _division(num_at_once=3),
        r"shard\(\) deals 3 examples at once, of which a step leaves some",
    ),
    "repeats of shards that end unevenly": (
        {"num_replicas": 4},
        _division(after_dealing=("Repeat",), num_dealt=15),
        r"repeat\(\) follows on shard\(\).*do not come out even: repeat examples befo",
    ),
    "repeats of data of unknown size": (
        {"share": 4},
        _division(after_joining=("Repeat",), num_dealt=None),
        r"repeat\(\) follows on",
    ),
    "repeated global batches": (
        {"share": 4},
        dataclasses.replace(GLOBAL, after_joining=("Repeat",), num_dealt=9),
        r"repeat\(\) follows on split_global_batches\(\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_read_other_examples_is_refused(name):
    changes, divided, message = REFUSED[name]
    before = Job(2, 2, 1, "per replica", "whole")

    with pytest.raises(errors.CheckpointMismatchError, match=message):
        steps_here(
            before.position(4),
            dataclasses.replace(before, **changes).position(),
            divided,
        )


@pytest.mark.parametrize("place", ["saved", "here"])
def test_batches_whose_size_nobody_knows_stay_with_their_replicas(place):
    """Such as those of a generator; on as many replicas they continue."""
    two, four = (Job(n, 2, 1, "single", "whole") for n in (2, 4))
    unknown = {"examples_per_step": None}
    saved = two.position(4, **unknown if place == "saved" else {})
    here = four.position(**unknown if place == "here" else {})

    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"(checkpoint|pipelines) do(es)? not say how many examples a step has.*"
        r"Restore on as many replicas, workers and examples per batch",
    ):
        steps_here(saved, here, SHARDED)
    assert 4 == steps_here(saved, two.position(**unknown), SHARDED)


NOT_ONE_PASS = {
    "repeats": _division(after_dealing=("Repeat",)),
    "files": _division(after_dealing=("Interleave",), num_dealt=8),
    "unknown": _division(num_dealt=None),
}


@pytest.mark.parametrize("name", NOT_ONE_PASS)
def test_what_may_follow_on_one_pass_is_not_taken_for_its_end(name):
    """Examples that are read again, lines of files, data of unknown size."""
    saved = Job(2, 5, 1, "per replica", "whole").position(10)

    assert has_read_all(saved, SHARDED)
    assert not has_read_all(saved, NOT_ONE_PASS[name])


ALLOWED = {
    "even passes": _division(after_dealing=("Repeat",), num_dealt=16),
    "the first pass": _division(after_dealing=("Repeat",), num_dealt=17),
    "examples that repeat": _division(num_dealt=float("inf")),
    "repeats of shards, where shards stay": _division(
        after_joining=("Map",), after_dealing=("Repeat",), num_dealt=float("inf")
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_repeats_that_come_out_even_are_converted(name):
    """Sixteen examples, of 2 x 2, continue after as many with 4 x 2."""
    before, after = (Job(n, 2, 1, "per replica", "whole") for n in (2, 4))

    assert 2 == steps_here(before.position(4), after.position(), ALLOWED[name])


def test_positions_of_old_checkpoints_are_read():
    """They do not say how many pipelines the job had."""
    old = {"num_input_pipelines": None}
    two, four = (Job(n, 2, 1, "single", "whole") for n in (2, 4))

    assert 3 == steps_here(two.position(3, **old), two.position(), SHARDED)
    assert 2 == steps_here(two.position(4, **old), four.position(), SHARDED)


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
GLOBAL_BATCHES = {"joined": (4,), "is_global": True, "num_dealt": 12}
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
    "global batches": (lambda: split().map(tf.identity).prefetch(2), GLOBAL_BATCHES),
    "repeated global batches": (
        lambda: split().repeat(),
        {**GLOBAL_BATCHES, "after_dealing": ("Repeat",), "after_joining": ("Repeat",)},
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
