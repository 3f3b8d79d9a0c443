"""Words for what goes wrong between workers: where they differ, who began it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator._tf.messages import first_line
from replicator.errors import DisagreementError, ReplicatorError

_FROM_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_COLLECTIVE_OPS = (
    "Collective",
    "collective",
    "RecvBuf",
    "CompleteGroup",
    "CompleteInstance",
)


def difference(first: Any, second: Any, where: str = "the program") -> tuple[str, ...]:
    """Finds the first place where two JSON values differ: where, and both sides."""
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
    """Makes the error for tensors of different shapes from what TensorFlow says."""
    shapes = message.partition("shapes differ between workers")[2]
    return DisagreementError(
        f"a collective in {what} got tensors of different shapes on different workers "
        f"(dimensions by worker, then a one: {first_line(shapes.strip(' [],'))}); "
        "replicas must pass it the same shapes: reduce over the examples first "
        "(mean_over_examples weighs the uneven batches of split_global_batches), or "
        "pad them"
    )


def is_collective_failure(error: tf.errors.OpError) -> bool:
    """Tells whether an error of TensorFlow is about other workers.

    These status codes come from transport and from collectives that were ended; the
    ops of a step do not use them. Other codes are shared with ordinary ops, and only
    the message has the name of what failed.
    """
    if isinstance(error, _FROM_OTHERS):
        return True
    return any(mark in str(error.message) for mark in _COLLECTIVE_OPS)


def root_cause(message: str) -> str:
    """What TensorFlow says began it, without the chain of those who passed it on."""
    for line in message.splitlines():
        if "aborted by" in line or "timed out" in line:
            return line.rpartition("aborted by: ")[2]
    return first_line(message)
