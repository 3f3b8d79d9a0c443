"""What a step closes over: variables found by their handles, and what is refused."""

import pytest
import tensorflow as tf

import replicator
from replicator import CaptureError, PerReplica

INPUTS = PerReplica([tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])])


def _add_by_name(counter):
    counter.assign_add(1, read_value=False)


def _add_by_raw_op(counter):
    tf.raw_ops.AssignAddVariableOp(resource=counter.handle, value=1)


def _add_in_a_branch(counter):
    tf.cond(
        tf.random.uniform([]) < 2.0,
        lambda: tf.raw_ops.AssignAddVariableOp(resource=counter.handle, value=1),
        tf.no_op,
    )


def _add_to_a_result(counter):
    """What an assignment returns is another object with the handle of the variable."""
    _add_to_a_result.kept = counter.assign_sub(1)
    _add_to_a_result.kept.assign_add(2)


WRITES = {
    "without a value": _add_by_name,
    "by handle": _add_by_raw_op,
    "in a function": tf.function(_add_by_name),
    "in a branch": _add_in_a_branch,
    "to a result": _add_to_a_result,
}


def test_a_write_that_nothing_reads_happens_once(in_graph):
    counters = {how: tf.Variable(0, trainable=False) for how in WRITES}

    def step():
        for how, write in WRITES.items():
            write(counters[how])
        return replicator.all_sum(counters["by handle"].read_value())

    totals = [int(in_graph.run(step)[1]) for _ in range(2)]

    assert dict.fromkeys(WRITES, 2) == {
        how: counter.numpy() for how, counter in counters.items()
    }
    assert [2, 4] == totals


def test_tables_iterators_and_datasets_may_be_read(in_graph):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1, 3], [10.0, 20.0]), 0.0
    )
    numbers, data = iter(tf.data.Dataset.range(4)), tf.data.Dataset.range(3)

    def step(x):
        total = data.reduce(tf.constant(0, tf.int64), lambda total, n: total + n)
        return table.lookup(tf.cast(x[0], tf.int32)), next(numbers), total

    found, read, totals = in_graph.run(step, INPUTS)

    assert [10.0, 20.0] == [float(value) for value in found]
    assert {0, 1} == {int(value) for value in read}
    assert [3, 3] == [int(value) for value in totals]


def _insert(x):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    return lambda: table.insert(tf.cast(x, tf.int64), x)


def _insert_in_a_branch(x):
    insert = _insert(x)
    return lambda: tf.cond(tf.random.uniform([]) < 2.0, insert, tf.no_op)


def _enqueue(x):
    queue = tf.queue.FIFOQueue(9, [tf.float32])

    @tf.function
    def enqueue():
        queue.enqueue(x)

    return enqueue


def _lock(x):
    section = tf.CriticalSection()
    return lambda: section.execute(lambda: 2.0 * x)


def _raw_handle(x):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="raw")
    return lambda: tf.raw_ops.AssignVariableOp(resource=handle, value=x)


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (_insert, "LookupTableInsertV2"),
        (_insert_in_a_branch, "LookupTableInsertV2"),
        (_enqueue, "QueueEnqueueV2"),
        (_lock, "MutexLock"),
        (_raw_handle, "AssignVariableOp"),
    ],
)
def test_a_change_of_what_exists_once_is_refused(make, op):
    change = make(tf.constant(1.0))

    def step():
        change()

    with pytest.raises(
        CaptureError,
        match=rf"(?=.*captured at .*test_captures\.py:\d+: ).*runs {op} on .*tf\.Var",
    ):
        replicator.create("in_graph", num_replicas=2).run(step)
    assert replicator.create("single").run(step) is not None


def _import(graph_def, total):
    (copy,) = tf.import_graph_def(graph_def, return_elements=[total.name])
    return copy


def _import_in_a_function(graph_def, total):
    return tf.function(lambda: _import(graph_def, total))()


@pytest.mark.parametrize("copy", [_import, _import_in_a_function])
def test_a_copy_of_a_collective_is_refused(copy):
    def step(x):
        total = replicator.all_sum(x)
        graph_def = tf.compat.v1.get_default_graph().as_graph_def()
        return total, copy(graph_def, total)

    with pytest.raises(
        CaptureError,
        match=r"uses at .*test_captures\.py:\d+: .* a copy of a graph that has a "
        r"collective \(.*import_graph_def.*join nothing; copy a graph without coll",
    ):
        replicator.create("in_graph", num_replicas=2).run(step, INPUTS)


def test_a_graph_without_collectives_is_imported():
    """Its operations have no line of their own, random ones included."""
    with tf.Graph().as_default() as graph:
        shifted = tf.random.uniform([]) + 1.0

    def step():
        (drawn,) = tf.import_graph_def(
            graph.as_graph_def(), return_elements=[shifted.name]
        )
        return drawn

    drawn = replicator.create("in_graph", num_replicas=2).run(step)
    assert all(1.0 <= float(value) <= 2.0 for value in drawn)


def test_a_placeholder_that_nothing_feeds_is_refused():
    def step():
        return tf.compat.v1.placeholder(tf.float32, [], name="rate")

    with pytest.raises(CaptureError, match=r"placeholder, 'rate', and nothing feeds"):
        replicator.create("in_graph", num_replicas=2).run(step)
