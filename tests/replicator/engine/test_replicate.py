"""Copies of a step's nodes: devices, random streams, ports, and what comes first."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica
from replicator.core.devices import make_topology
from replicator.engine import replicate

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
GPU = [name.replace("CPU", "GPU") for name in CPU]


def _copies(body, merged=(), devices=CPU):
    replicas = replicate.Replicas(
        body,
        make_topology([[device] for device in devices]),
        merged=merged,
        resolve=lambda r, name: f"{name}_of_{r}",
        handle_device=lambda r, name: None,
    )
    return {node.name: node for node in replicas.nodes()}


def test_a_merged_node_exists_once_and_waits_for_every_replica(node, make_body):
    body = make_body(
        node("read", "NoOp"),
        node("once", "Const"),
        node("both", "Neg", "once", "^read"),
        node("mine", "Neg", "both", "^read"),
    )
    found = _copies(body, {"once", "both"})

    reads = [f"^replica_{r}/read" for r in range(3)]
    assert ["replica_0/once:output:0", *reads] == list(found["replica_0/both"].input)
    assert ["replica_0/both:y:0", reads[2]] == list(found["replica_2/mine"].input)
    assert not {"replica_1/once", "replica_1/both"} & set(found)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", GPU[1]),
        ("/device:CPU:0", CPU[0]),
        ("/device:CPU:*", CPU[0]),
        ("/device:GPU:0", GPU[1]),
    ],
)
def test_a_device_of_another_type_is_kept_and_of_the_same_type_is_the_replicas(
    node, make_body, asked, expected
):
    """tf.device("CPU:0") in a step holds on GPUs; "GPU:0" means the replica's GPU."""
    placed = node("a", "NoOp")
    placed.device = asked

    copies = _copies(make_body(placed), devices=GPU[:2])
    assert expected == copies["replica_1/a"].device


# Folded for replica 1, this seed is 0, and 0, 0 asks TensorFlow for a random seed.
UNLUCKY = -replicate._SEED_STEP & replicate._SEED_LIMIT


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
