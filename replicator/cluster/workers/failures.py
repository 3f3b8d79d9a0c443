"""Error messages about workers: where they differ, and the root cause of a failure."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator._tf.messages import first_line, is_derived
from replicator.errors import DisagreementError, ReplicatorError

_FROM_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def difference(first: Any, second: Any, where: str = "the program") -> tuple[str, ...]:
    """Finds the first difference of two JSON values: its place and both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(k for k in second if k not in first)]:
            if key not in first or key not in second:
                return key, str(first.get(key)), str(second.get(key))
            if first[key] != second[key]:
                return difference(first[key], second[key], key)
    if isinstance(first, list) and isinstance(second, list):
        for index, (ours, theirs) in enumerate(zip(first, second, strict=False)):
            if ours != theirs:
                return difference(ours, theirs, f"#{index} of {where}")
        return f"the number of {where}", str(len(first)), str(len(second))
    return where, repr(first), repr(second)


def shape_error(what: str, message: str) -> ReplicatorError:
    """Makes the error for tensors of different shapes from TensorFlow's message."""
    shapes = message.partition("shapes differ between workers")[2]
    return DisagreementError(
        f"a collective in {what} got tensors of different shapes on different workers "
        f"(dimensions by worker, then a one: {first_line(shapes.strip(' [],'))}); "
        "all replicas must pass the same shapes: reduce over the examples first "
        "(mean_over_examples weights the uneven batches of split_global_batches), or "
        "pad the tensors"
    )


def is_collective_failure(error: tf.errors.OpError) -> bool:
    """Tells whether an error of TensorFlow is about other workers.

    These status codes come from transport and from collectives that were ended; the
    ops of a step do not use them. Other codes are shared with ordinary ops; TensorFlow
    marks those that a collective got from elsewhere. Names in the message say nothing:
    a layer may be called "collective".
    """
    return isinstance(error, _FROM_OTHERS) or is_derived(error)


def root_cause(message: str) -> str:
    """The root cause in TensorFlow's message, without the errors that it propagated."""
    for line in message.splitlines():
        if "aborted by" in line or "timed out" in line:
            return line.rpartition("aborted by: ")[2]
    return first_line(message)
