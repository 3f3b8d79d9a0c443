"""tf.summary in a step: one value per step, that of replica 0."""

import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica


def _written(folder):
    found = []
    for path in sorted(folder.iterdir()):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [
                (event.step, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
            ]
    return found


def _run(repl, folder, step, num_steps=4):
    writer = tf.summary.create_file_writer(str(folder))
    values = PerReplica([tf.constant(1.0 + r) for r in range(repl.num_replicas)])
    with writer.as_default():
        for index in range(num_steps):
            tf.summary.experimental.set_step(tf.constant(index, tf.int64))
            repl.run(step, values)
    writer.close()
    return _written(folder)


def _count(repl):
    with repl.context():
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def test_each_value_is_written_once(repl_once, tmp_path):
    """By replica 0, whose own value it is."""
    count = _count(repl_once)

    def step(x):
        tf.summary.write("x", 10.0 * x, step=count)
        count.assign_add(1)

    assert [(i, 10.0) for i in range(4)] == _run(repl_once, tmp_path, step)


def test_a_mean_over_replicas_is_written_by_asking_for_it(repl_once, tmp_path):
    """What is reduced first is the same on every replica."""
    count = _count(repl_once)

    def step(x):
        tf.summary.write("mean", replicator.all_mean(x), step=count)
        count.assign_add(1)

    mean = (1.0 + repl_once.num_replicas) / 2
    assert [(i, mean) for i in range(4)] == _run(repl_once, tmp_path, step)


def test_record_if_is_still_the_users(in_graph, tmp_path):
    """Every second step, and still once."""
    count = _count(in_graph)

    def step(x):
        with tf.summary.record_if(count % 2 == 0):
            tf.summary.write("x", x, step=count)
        count.assign_add(1)

    assert [(0, 1.0), (2, 1.0)] == _run(in_graph, tmp_path, step)


def test_a_summary_in_a_branch_is_written_once(in_graph, tmp_path):
    """Also where the branch is taken on every replica."""
    count = _count(in_graph)

    def step(x):
        def write():
            tf.summary.write("x", x, step=count)
            return x

        y = tf.cond(x > 0.0, write, lambda: x)
        count.assign_add(1)
        return y

    assert [(i, 1.0) for i in range(4)] == _run(in_graph, tmp_path, step)


@pytest.mark.parametrize("num_steps", [4])
def test_each_step_of_one_dispatch_writes(in_graph, tmp_path, num_steps):
    count = _count(in_graph)

    def step():
        tf.summary.write("count", tf.cast(count, tf.float32), step=count)
        count.assign_add(1)

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        in_graph.run(step, num_steps=num_steps)
    writer.close()

    assert [(i, float(i)) for i in range(num_steps)] == _written(tmp_path)
