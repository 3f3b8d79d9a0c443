"""Conversion of arguments to dense tensors, with actionable errors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator.step.per_replica import PerReplica
from replicator.validation.arguments import shown

_ADVICE: tuple[tuple[Any, str], ...] = (
    (type(None), "leave it out, or pass zeros instead"),
    (tf.RaggedTensor, "make it dense with value.to_tensor()"),
    (tf.SparseTensor, "make it dense with tf.sparse.to_dense(value)"),
    (
        PerReplica,
        "pass it to run(step_fn, inputs), and use the argument of the step",
    ),
    (int, "pass an integer that fits into 64 bits, or a float"),
)
_NEVER_DENSE = (tf.RaggedTensor, tf.SparseTensor, PerReplica)


def tensor_of(value: Any, said: str) -> tf.Tensor:
    """Returns a value as a dense tensor."""
    if isinstance(value, tf.Tensor):
        return value
    cause: Exception | None = None
    # A PerReplica has a length and items, so TensorFlow would stack its values.
    if not isinstance(value, _NEVER_DENSE):
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            cause = error
    raise TypeError(f"{said}, but got {shown(value)}; {_advice(value)}") from cause


def _advice(value: Any) -> str:
    for kind, text in _ADVICE:
        if isinstance(value, kind):
            return text
    return "pass tensors, NumPy arrays or numbers"
