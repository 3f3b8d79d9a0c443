"""Coherence: the user's own variables and the replicas' copies agree between steps.

Users read and write ordinary variables: they restore checkpoints, set weights, print
statistics. Before a run, ``refresh`` notices which variables were changed outside and
resets the replicas' copies from them; after it, ``publish`` gives the user's variables
what replicas computed. Both are part of the graph of the run: nothing is left to a
call that a user could forget. Variables that replicas share need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import creation
from replicator.engine.variables import Kind, outside_value, replica_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.engine.variables import Entry


class Coherence:
    """Keeps a set of variables coherent around the runs of one program.

    Attributes:
      entries: Variables with copies of their own.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(e for e in entries if _has_copies(e))
        self._groups: dict[tf.DType, list[Entry]] = {}
        for entry in self.entries:
            if entry.kind is not Kind.MIRRORED:
                self._groups.setdefault(entry.variable.dtype, []).append(entry)
        self._mirrored = [e for e in self.entries if e.kind is Kind.MIRRORED]
        self._seen: dict[Any, tf.Variable] = {}
        with tf.init_scope(), creation.allowed():
            for dtype, group in self._groups.items():
                self._seen[dtype] = tf.Variable(_pack(group), trainable=False)
            if self._mirrored:
                self._seen["mirrored"] = tf.Variable(
                    _fingerprints(self._mirrored), trainable=False
                )
            self._reset_copies()

    def refresh(self) -> None:
        """Emits the check for outside changes and the reset that follows one."""
        changed = [
            tf.reduce_any(tf.not_equal(_pack(entries), self._seen[dtype]))
            for dtype, entries in self._groups.items()
        ]
        if self._mirrored:
            prints = _fingerprints(self._mirrored)
            changed.append(tf.reduce_any(tf.not_equal(prints, self._seen["mirrored"])))
        if changed:
            tf.cond(
                tf.reduce_any(tf.stack(changed)), self._reset_copies_in_cond, tf.no_op
            )

    def publish(self) -> None:
        """Emits the update of the user's variables and remembers what they hold."""
        for dtype, entries in self._groups.items():
            for entry in entries:
                entry.variable.assign(outside_value(entry))
            self._seen[dtype].assign(_pack(entries))
        if self._mirrored:
            self._seen["mirrored"].assign(_fingerprints(self._mirrored))

    def _reset_copies_in_cond(self) -> tf.Operation:
        self._reset_copies()
        return tf.no_op()

    def _reset_copies(self) -> None:
        for entry in self.entries:
            for replica_id, copy in enumerate(entry.copies):
                if copy is not entry.variable:
                    copy.assign(replica_value(entry.variable, entry.kind, replica_id))


def _has_copies(entry: Entry) -> bool:
    return any(copy is not entry.variable for copy in entry.copies)


def _pack(entries: Sequence[Entry]) -> tf.Tensor:
    """One vector of all values: comparing it is one op instead of one per variable."""
    return tf.concat([tf.reshape(e.variable, [-1]) for e in entries], axis=0)


def _fingerprints(entries: Sequence[Entry]) -> tf.Tensor:
    """A checksum of each variable's bits, cheap where memory is fast (GPUs)."""
    return tf.stack([_fingerprint(tf.identity(e.variable)) for e in entries])


def _fingerprint(value: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(value, [-1])
    if value.dtype == tf.bool:
        bits = tf.cast(flat, tf.int64)
    elif value.dtype.size == 8:  # noqa: PLR2004 (bytes of int64)
        bits = tf.bitcast(flat, tf.int64)
    elif value.dtype.size == 4:  # noqa: PLR2004 (bytes of int32)
        bits = tf.cast(tf.bitcast(flat, tf.int32), tf.int64)
    else:
        whole = tf.uint16 if value.dtype.size == 2 else tf.uint8  # noqa: PLR2004
        bits = tf.cast(tf.bitcast(flat, whole), tf.int64)
    # Weights by position, so that exchanged elements change the sum.
    places = tf.range(tf.size(bits, out_type=tf.int64), dtype=tf.int64) * 2 + 1
    return tf.reduce_sum(bits * places)
