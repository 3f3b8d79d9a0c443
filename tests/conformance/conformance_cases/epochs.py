"""Whole epochs: every example once, also where they do not fill the last step."""

import contextlib

import numpy as np
import tensorflow as tf
from conformance_cases.registry import case

import replicator

_SHARE = 2  # examples of a replica and step
_NUM_STEPS = 3  # whole ones, before the last


def _num_examples(num_replicas):
    """The last step has a batch of two examples, and one of one for the next worker."""
    return _NUM_STEPS * _SHARE * num_replicas + 3


def _input_fn(repl):
    def input_fn(ctx):
        examples = tf.data.Dataset.range(_num_examples(repl.num_replicas))
        own = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return own.batch(_SHARE).map(lambda i: {"id": i, "one": tf.ones_like(i)})

    return input_fn


def _count(batch):
    sums = {name: tf.reduce_sum(values) for name, values in batch.items()}
    return replicator.all_sum(sums)


def _total(outputs):
    return {name: np.int64(sum(int(o[name][0]) for o in outputs)) for name in _NAMES}


_NAMES = ("id", "one")


def _reference(topology):
    num_examples = _num_examples(topology.num_replicas)
    each = {
        "id": np.int64(num_examples * (num_examples - 1) // 2),
        "one": np.int64(num_examples),
    }
    return [each, each]


@case("whole_epochs", "collectives", "input_per_worker", reference=_reference)
def an_epoch_of_steps(repl):
    """run(step, inputs) feeds each example once, twice in two epochs."""
    inputs = repl.make_input_iterator(_input_fn(repl))

    def epoch():
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                yield repl.run(_count, inputs)

    first = _total(list(epoch()))
    inputs.reinitialize()
    return [first, _total(list(epoch()))]


@case(
    "whole_epochs",
    "batches_outside_steps",
    "collectives",
    "input_per_worker",
    reference=_reference,
)
def an_epoch_of_a_loop(repl):
    """A loop over inputs does the same as run(step, inputs), with the same program."""
    inputs = repl.make_input_iterator(_input_fn(repl))
    totals = []
    for _ in range(2):
        totals.append(_total([repl.run(_count, batch) for batch in inputs]))
        inputs.reinitialize()
    return totals
