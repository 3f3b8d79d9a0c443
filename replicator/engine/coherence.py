"""Coherence: the user's own variables and the replicas' copies agree between steps.

Users read and write ordinary variables: they restore checkpoints, set weights, print
statistics. Before a run, ``refresh`` notices which variables were changed outside and
resets the replicas' copies from them; after it, ``publish`` gives the user's variables
what replicas computed. Both are part of the graph of the run: nothing is left to a
call that a user could forget. Variables that replicas share need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.engine import worker_values
from replicator.engine.variables import Kind, bits, outside_value, replica_value, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.engine.group import Group
    from replicator.engine.variables import Entry
    from replicator.topology import Topology


class Coherence:
    """Keeps the variables of one program coherent around its runs.

    Attributes:
      entries: Variables with copies of their own.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        topology: Topology,
        group: Group | None = None,
    ) -> None:
        self.entries = tuple(entry for entry in entries if entry.seen is not None)
        self._topology = topology
        self._over_workers = (
            worker_values.OutsideValues(self.entries, topology, group)
            if group is not None
            else None
        )

    def refresh(self) -> None:
        """Emits the check for outside changes and the reset that follows one."""
        if self.entries:
            # Not inlined: an untaken branch costs one node a step instead of thousands.
            reset = tf.function(
                self._reset,
                autograph=False,
                experimental_attributes={"_noinline": True},
            )
            tf.cond(self._is_changed(), reset, lambda: tf.constant(0))

    def publish(self) -> None:
        """Emits the update of the user's variables and remembers what they hold."""
        values = (
            self._over_workers.read()
            if self._over_workers is not None
            else [outside_value(entry) for entry in self.entries]
        )
        for entry, value in zip(self.entries, values, strict=True):
            if not any(copy is entry.variable for copy in entry.copies):
                entry.variable.assign(value)
            entry.seen.assign(state(entry.variable, entry.kind))

    def settle(self) -> None:
        """Emits what makes variables coherent after a run that ended too early.

        Nobody knows whether that run had come to its refresh, so this does it too: it
        is the identity the second time.
        """
        self.refresh()
        self.publish()

    def _is_changed(self) -> tf.Tensor:
        # One vector per type: comparing it is one op instead of one per variable.
        by_type: dict[tf.DType, list[Entry]] = {}
        for entry in self.entries:
            by_type.setdefault(entry.seen.dtype, []).append(entry)
        differs = [
            tf.reduce_any(
                bits(_pack([state(e.variable, e.kind) for e in entries]))
                != bits(_pack([tf.identity(e.seen) for e in entries]))
            )
            for entries in by_type.values()
        ]
        return tf.reduce_any(tf.stack(differs))

    def _reset(self) -> tf.Tensor:
        # One variable that changed must leave the copies of the others as they are.
        for entry in self.entries:
            is_mirrored = entry.kind is Kind.MIRRORED  # its copies are equal anyway
            is_changed = is_mirrored or tf.reduce_any(
                bits(state(entry.variable, entry.kind)) != bits(tf.identity(entry.seen))
            )
            resets = []
            for replica, copy in enumerate(entry.copies):
                is_held = is_mirrored and self._topology.holders[replica] != replica
                if copy is entry.variable or is_held:
                    continue
                fresh = replica_value(
                    entry.variable,
                    entry.kind,
                    self._topology.replica_id(replica),
                    self._topology.num_replicas,
                )
                value = fresh if is_mirrored else tf.where(is_changed, fresh, copy)
                resets.append(copy.assign(value).op)
            # Only then, so that a reset which was cut short happens again.
            with tf.control_dependencies(resets):
                entry.seen.assign(state(entry.variable, entry.kind))
        return tf.constant(0)


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
