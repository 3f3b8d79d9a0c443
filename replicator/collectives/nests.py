"""Nests that collectives take: their leaves as dense tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step.values import tensor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# AutoGraph would convert every call of the library again, which would take most of the
# tracing time of a collective. No Python control flow here depends on tensors.
as_written = tf.autograph.experimental.do_not_convert


def dense(value: Any, caller: str, does: str) -> list[tf.Tensor]:
    """The leaves of a nest."""
    leaves = tf.nest.flatten(value)
    if any(isinstance(leaf, tf.IndexedSlices) for leaf in leaves):
        raise ValueError(
            f"{caller} does not take tf.IndexedSlices, because it {does} dense "
            "tensors; use tf.convert_to_tensor on the slices, or communicate their "
            "values and indices"
        )
    return [
        tensor_of(leaf, f"{caller}() takes a nest of dense tensors") for leaf in leaves
    ]


def check_rows(tensors: Sequence[tf.Tensor], caller: str, num_replicas: int) -> None:
    """Rejects tensors whose rows cannot be divided equally among replicas."""
    for tensor in tensors:
        rank = tensor.shape.rank
        rows = tensor.shape[0] if rank else None
        if not rank or (rows is not None and rows % num_replicas):
            raise ValueError(
                f"{caller} divides the rows of a tensor equally among "
                f"{num_replicas} replicas, but got shape {tensor.shape}; pass a "
                f"first dimension that is a multiple of {num_replicas}"
            )
