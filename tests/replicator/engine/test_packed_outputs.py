"""Outputs of replicas of another process that are returned as one vector."""

import tensorflow as tf

from replicator.collectives.kind import Transfer
from replicator.engine.graph.body import Ref
from replicator.engine.run.packed_outputs import PackedOutputs
from replicator.placement.topology import make_topology

HERE = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in (0, 0)]
THERE = [f"/job:localhost/replica:0/task:1/device:CPU:{i}" for i in (0, 1)]
SPECS = [
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([2, 1], tf.float32),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.string),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([16 * 1024], tf.float32),
]
# Of each of the last two replicas: those of float32, and the int64s.
VECTORS = [tf.TensorSpec([6], tf.float32), tf.TensorSpec([2], tf.int64)]


def _packed(places):
    return PackedOutputs(SPECS, make_topology([[p] for p in places]))


def test_small_numbers_of_another_process_are_one_vector_per_type():
    """What is large, of unknown size or no number is returned alone."""
    packed = _packed(HERE + THERE)

    assert 2 * SPECS + 2 * SPECS[3:] + VECTORS == packed.specs
    refs = [Ref(node=f"out_{p}", port="y:0") for p in range(4 * len(SPECS))]
    returned, nodes = packed.pack(refs, "step")
    assert len(packed.specs) == len(returned)
    assert refs[:12] + refs[15:18] + refs[21:24] == returned[:-2]
    joined = [node for node in nodes if node.op == "ConcatV2"]
    assert [THERE[0]] * 2 == [node.device for node in joined]


def test_the_caller_gets_outputs_in_their_order():
    packed = _packed(HERE + THERE)
    shapes = [[1 if d is None else d for d in spec.shape] for spec in SPECS]
    alone = [
        tf.fill(shape, "of" if spec.dtype == tf.string else tf.cast(1, spec.dtype))
        for spec, shape in [
            *2 * list(zip(SPECS, shapes, strict=True)),
            *2 * list(zip(SPECS[3:], shapes[3:], strict=True)),
        ]
    ]
    vectors = [tf.range(6.0), tf.constant([7, 8], tf.int64)]

    outputs = packed.unpack([*alone, *vectors])

    assert 4 * shapes == [output.shape.as_list() for output in outputs]
    assert [0.0, 3.0] == [float(outputs[p]) for p in (12, 18)]
    assert [[[1.0], [2.0]], [[4.0], [5.0]]] == [
        outputs[p].numpy().tolist() for p in (13, 19)
    ]
    assert [7, 8] == [int(outputs[p]) for p in (14, 20)]


def test_what_is_sent_to_the_caller_is_counted():
    """Each transfer from the first replica that it holds something of."""
    sent = _packed(HERE + THERE).transfers

    assert Transfer(source=2, target=0, num_bytes=6 * 4) == sent[-2]
    assert Transfer(source=2, target=0, num_bytes=2 * 8) == sent[-1]
    assert [0] * 6 + [1] * 6 + [2] * 3 + [3] * 3 == [of.source for of in sent[:-2]]


def test_nothing_is_packed_in_one_process():
    assert 4 * SPECS == _packed(HERE + HERE).specs
