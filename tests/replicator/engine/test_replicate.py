"""Copies of a step's nodes: random streams, ports, and what comes first."""

import numpy as np
import tensorflow as tf
from graphs import linked_graph, only_program

import replicator
from replicator import PerReplica


def test_a_merged_node_exists_once_and_waits_for_every_replica(per_replica):
    """What each replica has of its own waits for that of its own replica alone."""
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
    repl = replicator.create("in_graph", num_replicas=3, devices=devices)
    with repl.context():
        count = tf.Variable(2.0, trainable=False)

    def step(x):
        tf.debugging.Assert(x > 0.0, ["negative"])
        check = tf.debugging.Assert(x < 9.0, ["large"])
        with tf.control_dependencies([check]):
            once = count.read_value()
        with tf.device("CPU:0"):  # of the replica, whichever it is
            return once - x

    repl.run(step, per_replica([1.0, 2.0, 3.0]))

    by_type = {}
    for op in linked_graph(only_program(repl)).get_operations():
        by_type.setdefault(op.type, []).append(op)
    (merged,) = {op.inputs[0].op for op in by_type["Sub"]}
    assert devices == [op.device for op in by_type["Sub"]]
    firsts, seconds = by_type["Assert"][:3], by_type["Assert"][3:]
    assert set(seconds) == set(merged.control_inputs)
    assert [[op] for op in firsts] == [op.control_inputs for op in seconds]


# Folded for replica 1, this seed is 0, and 0, 0 asks TensorFlow for a random seed.
UNLUCKY = -0x9E3779B1 & 0x7FFFFFFF


def test_replicas_draw_apart_wherever_they_draw():
    """Seeds of ops and in functions of functions; replica 0 keeps what one draws."""

    def draw(seed):
        return tf.raw_ops.RandomUniform(
            shape=[4], dtype=tf.float32, seed=seed[0], seed2=seed[1]
        )

    own = {"experimental_attributes": {"_noinline": True}}
    inner = tf.function(lambda: draw((7, 3)), **own)
    outer = tf.function(lambda: inner() + 1.0, **own)

    def step():
        return draw((7, 3)), draw((0, UNLUCKY)), outer(), draw((0, 0))

    def three(num_replicas):
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        found = [repl.run(step) for _ in range(2)]
        return [[np.stack(of) for of in zip(*out, strict=True)] for out in found]

    alone, split, again = three(1), three(3), three(3)
    for one, both, same in zip(alone, split, again, strict=True):
        for place in range(3):
            np.testing.assert_array_equal(one[0][place], both[0][place])
            np.testing.assert_array_equal(
                [of[place] for of in both], [of[place] for of in same]
            )
        drawn = [of[place].tobytes() for of in both for place in (0, 1, 3)]
        assert len(drawn) == len(set(drawn))
        assert 3 == len({of[2].tobytes() for of in both})


def test_every_output_of_every_kind_of_op_is_found():
    @tf.function
    def pair(x):
        return x + 1.0, x + 2.0

    def step(x):
        images = tf.reshape(x, [1, 1, 2, 3])
        normalized = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=tf.ones([3]),
            offset=tf.zeros([3]),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
        )
        return {
            "split": tf.split(x, 3)[2],
            "unstack": tf.unstack(x)[1],
            "identity_n": tf.identity_n([x, tf.cast(x, tf.int32)])[1],
            "batch norm": [normalized.batch_mean, normalized.batch_variance],
            "unique": tf.unique(x // 2)[1],
            "function": pair(x)[1],
            "branch": tf.cond(x[0] > 0, lambda: pair(x)[0], lambda: -x),
        }

    values = [tf.range(6.0), 10.0 + tf.range(6.0)]
    found = replicator.create("in_graph", num_replicas=2).run(step, PerReplica(values))

    for replica, value in enumerate(values):
        tf.nest.map_structure(
            lambda got, want, r=replica: np.testing.assert_allclose(got[r], want),
            found,
            step(value),
        )
