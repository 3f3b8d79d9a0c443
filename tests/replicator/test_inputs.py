"""Input pipelines: who reads what, in which order, and when it ends."""

from __future__ import annotations

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, errors

PER_WORKER = InputReplicationMode.PER_WORKER
PER_REPLICA = InputReplicationMode.PER_REPLICA
SINGLE = InputReplicationMode.SINGLE


def _count_from(start, num_batches):
    return tf.data.Dataset.range(start, start + num_batches)


def _identity(x):
    return tf.identity(x)


def _ints(values):
    return [int(v) for v in values]


@pytest.mark.parametrize("mode", [PER_WORKER, SINGLE])
def test_one_pipeline_is_dealt_in_turn(repl, mode):
    """Replica r of step s gets batch s * R + r, with one call of the input function."""
    calls = []

    def input_fn(ctx):
        calls.append(ctx)
        return _count_from(0, 100)

    inputs = repl.make_input_iterator(input_fn, mode)
    n = repl.num_replicas

    got = [_ints(repl.run(_identity, inputs)) for _ in range(3)]

    assert [[s * n + r for r in range(n)] for s in range(3)] == got
    assert [(1, 0, n)] == [
        (c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync)
        for c in calls
    ]


def test_each_replica_reads_a_pipeline_of_its_own(repl):
    """PER_REPLICA: replica r reads pipeline r, in order, whatever the backend."""
    inputs = repl.make_input_iterator(
        lambda ctx: _count_from(100 * ctx.input_pipeline_id, 10), PER_REPLICA
    )
    n = repl.num_replicas

    got = [_ints(repl.run(_identity, inputs)) for _ in range(3)]

    assert [[100 * r + s for r in range(n)] for s in range(3)] == got


@pytest.mark.parametrize("mode", [PER_WORKER, PER_REPLICA])
def test_steps_of_one_dispatch_read_as_many_batches(repl, mode):
    """run(num_steps=4) then run(): the fifth step's batches come next."""
    inputs = repl.make_input_iterator(
        lambda ctx: _count_from(100 * ctx.input_pipeline_id, 100), mode
    )
    n = repl.num_replicas

    many = _ints(repl.run(_identity, inputs, num_steps=4))
    one = _ints(repl.run(_identity, inputs))

    def expected(step):
        if mode is PER_REPLICA:
            return [100 * r + step for r in range(n)]
        return [step * n + r for r in range(n)]

    assert (expected(3), expected(4)) == (many, one)


def test_the_end_of_data_is_tensorflows_error_and_rewinding_starts_again(repl):
    """OutOfRangeError once a step cannot be fed; reinitialize() gives batch 0 again."""
    inputs = repl.make_input_iterator(
        lambda ctx: _count_from(10 * ctx.input_pipeline_id, 2), PER_REPLICA
    )
    first = _ints(repl.run(_identity, inputs))
    repl.run(_identity, inputs)

    with pytest.raises(tf.errors.OutOfRangeError):
        repl.run(_identity, inputs)
    inputs.reinitialize()

    assert first == _ints(repl.run(_identity, inputs))


def test_a_step_that_cannot_be_fed_does_not_run_on_any_replica(in_graph):
    """Three batches, two replicas: the second step finds one and changes nothing."""
    with in_graph.context():
        total = tf.Variable(0, dtype=tf.int64, trainable=False)
    inputs = in_graph.make_input_iterator(lambda _: _count_from(1, 3))

    def step(x):
        total.assign_add(replicator.all_sum(x))

    in_graph.run(step, inputs)

    with pytest.raises(tf.errors.OutOfRangeError):
        in_graph.run(step, inputs)
    assert 3 == int(total)


def test_batches_can_be_read_without_a_step(repl):
    """get_next() gives a nest of PerReplica, and run() continues after it."""
    inputs = repl.make_input_iterator(
        lambda ctx: _count_from(0, 100).map(lambda i: {"x": i, "y": -i})
    )
    n = repl.num_replicas

    batch = inputs.get_next()
    following = repl.run(lambda b: b["x"], inputs)

    assert list(range(n)) == _ints(batch["x"])
    assert [-r for r in range(n)] == _ints(batch["y"])
    assert list(range(n, 2 * n)) == _ints(following)


def test_ragged_batches_reach_every_replica(repl):
    """Composite tensors are fed as they are: rows [1, 2], [3], [4, 5, 6], [7]..."""
    rows = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]] * 2)
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensor_slices(rows).batch(2)
    )

    def step(x):
        return tf.reduce_sum(x), x.row_lengths()

    sums, lengths = repl.run(step, inputs)

    n = repl.num_replicas
    assert [6, 22, 6, 22][:n] == _ints(sums)
    assert ([[2, 1], [3, 1]] * 2)[:n] == [v.numpy().tolist() for v in lengths]


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


def test_what_is_not_a_dataset_is_refused(repl):
    """The message has the type that came."""
    with pytest.raises(
        TypeError, match=r"input_fn returned 'list', but it must return a tf.data.Data"
    ):
        repl.make_input_iterator(lambda _: [1, 2])


def test_modes_are_listed_when_one_is_unknown(repl):
    """A string is not a mode."""
    with pytest.raises(TypeError, match=r"mode 'SINGLE' is not one of .*PER_REPLICA"):
        repl.make_input_iterator(lambda _: _count_from(0, 1), "SINGLE")


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
