"""Input pipelines that do not fit together, and batches that do not divide."""

from __future__ import annotations

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, errors

PER_REPLICA = InputReplicationMode.PER_REPLICA


def test_a_dimension_that_differs_between_pipelines_is_unknown(in_graph):
    """Batches of 2 and of 3 give a step of unknown size, traced once."""
    inputs = in_graph.make_input_iterator(
        lambda ctx: tf.data.Dataset.from_tensors(
            tf.ones([2 + ctx.input_pipeline_id, 4])
        ),
        PER_REPLICA,
    )

    out = in_graph.run(tf.reduce_sum, inputs)

    assert [None, 4] == inputs.element_spec.shape.as_list()
    assert [8.0, 12.0] == [float(v) for v in out]


def test_pipelines_of_different_structures_are_refused(in_graph):
    """The message numbers them."""

    def input_fn(ctx):
        data = tf.data.Dataset.range(4)
        return data if ctx.input_pipeline_id == 0 else data.map(lambda i: (i, i))

    with pytest.raises(
        ValueError, match=r"pipelines 0 and 1 yield different structures:.*same"
    ):
        in_graph.make_input_iterator(input_fn, PER_REPLICA)


def test_pipelines_of_different_types_are_refused(in_graph):
    """A common type would convert in silence."""

    def input_fn(ctx):
        return tf.data.Dataset.from_tensors(1 if ctx.input_pipeline_id else 1.0)

    with pytest.raises(
        ValueError, match=r"pipelines 0 and 1 yield different types:.*same types"
    ):
        in_graph.make_input_iterator(input_fn, PER_REPLICA)


@pytest.mark.parametrize(
    ("global_batch_size", "num_replicas", "hint"),
    [(7, 2, "6 or 8"), (7, 4, "4 or 8"), (3, 4, "4 or 8"), (0, 2, "2 or 4")],
)
def test_a_global_batch_that_does_not_divide_is_refused(
    global_batch_size, num_replicas, hint
):
    """The message has both numbers and the multiples around."""
    ctx = replicator.InputContext(num_replicas_in_sync=num_replicas)

    with pytest.raises(
        errors.SplitBatchError,
        match=rf"size {global_batch_size} does not divide by num_replicas "
        rf"{num_replicas}: .*such as {hint}",
    ):
        ctx.get_per_replica_batch_size(global_batch_size)


def test_a_global_batch_that_divides_gives_the_share():
    """Eight over four replicas is two."""
    ctx = replicator.InputContext(num_replicas_in_sync=4)

    assert 2 == ctx.get_per_replica_batch_size(8)


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
