"""Calls of collectives as a trace leaves them, without a trace."""

import tensorflow as tf

from replicator.collectives.kinds import AllReduce, Collective

SUM = AllReduce(op="sum")


def make_call(shapes, kind=SUM, *, num_replicas=2, dtypes=None, index=0, **options):
    """A call on tensors of some shapes, float32 unless types are given."""
    places = range(len(shapes))
    facts = {
        "operands": tuple(f"operand_{index}_{place}" for place in places),
        "markers": tuple(f"marker_{index}_{place}" for place in places),
        "dtypes": tuple(dtypes or [tf.float32] * len(shapes)),
        "shapes": tuple(tf.TensorShape(shape) for shape in shapes),
    }
    return Collective(
        index=index, kind=kind, num_replicas=num_replicas, **(facts | options)
    )
