"""Partial variables: each replica keeps its own sum, and only their mean has a meaning.

They are not averaged between steps, because avoiding that communication is their
purpose. ``consolidate`` averages them before a checkpoint is written. This changes no
result, and the user's own variable then holds the whole state, which can be restored
with any number of replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.variables.fingerprints import state
from replicator.variables.kinds import Kind
from replicator.variables.outside_values import to_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from replicator.placement.topology import Topology
    from replicator.variables.table import Entry


def consolidate(
    entries: Iterable[Entry],
    topology: Topology,
    add_up: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
) -> None:
    """Makes all copies of each partial variable their mean."""
    partial = [entry for entry in entries if entry.kind is Kind.PARTIAL]
    sums = []
    for entry in partial:
        with tf.device(entry.variable.device):
            copies = [to_number(tf.identity(copy)) for copy in entry.copies]
            sums.append(tf.add_n(copies))
    if not partial:
        return
    for entry, total in zip(partial, add_up(sums), strict=True):
        with tf.device(entry.variable.device):
            mean = total / tf.cast(topology.num_replicas, total.dtype)
            mean = tf.cast(mean, entry.variable.dtype)
        for copy in entry.copies:
            copy.assign(mean)
        if entry.seen is not None:  # not the only replica of one of several workers
            entry.seen.assign(state(entry.variable, entry.kind))
