"""A profile shows the steps of run() and the replicas inside them."""

import pytest
import tensorflow as tf

import replicator


def test_a_profile_has_numbered_steps_and_the_ops_of_every_replica(tmp_path):
    """The recorded trace has the range of run(), its step numbers, replica_<r>/ ops."""
    repl = replicator.create("in_graph", num_replicas=2)
    values = replicator.PerReplica([tf.ones([64, 64]), tf.ones([64, 64])])

    def step(x):
        for _ in range(4):
            x = tf.linalg.matmul(x, x, name="my_product")
        return replicator.all_sum(x)

    repl.run(step, values)
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(3):
        repl.run(step, values)
    tf.profiler.experimental.stop()

    (trace,) = tmp_path.rglob("*.xplane.pb")
    recorded = trace.read_bytes()
    assert b"replicator/run" in recorded
    assert b"step_num" in recorded
    assert b"replica_0/my_product" in recorded
    assert b"replica_1/my_product" in recorded
    assert 4 == repl.num_steps_run


def test_steps_are_counted_over_dispatches_and_not_when_they_fail():
    """num_steps=3 counts three; a step at the end of the data counts none."""
    repl = replicator.create("single")
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(4))
    repl.run(tf.identity, inputs, num_steps=3)
    repl.run(tf.identity, inputs)
    with pytest.raises(tf.errors.OutOfRangeError):
        repl.run(tf.identity, inputs)

    assert 4 == repl.num_steps_run
