"""all_concat: joins the values of all replicas along a dimension of any size."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.kinds.all_concat import AllConcat
from replicator.collectives.nests import dense
from replicator.step import context as context_lib


def all_concat(value: Any, axis: int = 0) -> Any:
    """Joins a nest over all replicas along a dimension, in order of ``replica_id``."""
    context = context_lib.require("all_gather")
    tensors = dense(value, "all_gather", "joins")
    joined = []
    for tensor in tensors:  # sizes may differ between the tensors of a nest, too
        rank = tensor.shape.rank
        if rank is None or not -rank <= axis < rank:
            raise ValueError(
                f"all_gather along axis {axis!r} of a tensor of shape {tensor.shape}: "
                "there is no such dimension; use replicator.all_gather(value), which "
                "stacks the values of all replicas"
            )
        swapped = [axis % rank, *(d for d in range(rank) if d != axis % rank)]
        in_front = tensor if swapped[0] == 0 else tf.transpose(tensor, swapped)
        (rows,) = differentiable.communicate(context, AllConcat(), [in_front])
        back = [swapped.index(d) for d in range(rank)]
        joined.append(rows if swapped[0] == 0 else tf.transpose(rows, back))
    return tf.nest.pack_sequence_as(value, joined)
