"""Coherence: the user's own variables and the replicas' copies agree between steps.

Users read and write ordinary variables: they restore checkpoints, set weights, print
statistics. Before a run, ``refresh`` detects variables that were changed outside and
resets the replicas' copies from them; after it, ``publish`` updates the user's
variables from the replicas' results. Both are part of the graph of the run, so there is
no call that a user could forget. Variables that replicas share need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives.buckets import positions_by_dtype
from replicator.step.traced_once import traced_once
from replicator.variables import worker_values
from replicator.variables.copy_values import (
    bits,
    outside_value,
    replica_value,
    state,
    state_of,
)
from replicator.variables.kinds import Kind, is_summed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.placement.topology import Topology
    from replicator.placement.worker_group import Group
    from replicator.variables.table import Entry


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
        self._resets: dict[tuple[Any, ...], Any] = {}
        self._over_workers = (
            worker_values.OutsideValues(self.entries, topology, group)
            if group is not None
            else None
        )

    def refresh(self) -> None:
        """Emits the check for outside changes, and the reset of changed variables."""
        if self.entries:
            # Not inlined: an untaken branch costs one node a step instead of thousands.
            reset = traced_once(
                self._reset,
                experimental_attributes={"_noinline": True},
            )
            tf.cond(self._is_changed(), reset, lambda: tf.constant(0))

    def publish(self) -> None:
        """Emits the update of the user's variables and records their state."""
        values = (
            self._over_workers.read()
            if self._over_workers is not None
            else [outside_value(entry) for entry in self.entries]
        )
        for entry, value in zip(self.entries, values, strict=True):
            variable, kind = entry.variable, entry.kind
            if not any(copy is variable for copy in entry.copies):
                variable.assign(value, read_value=False)
            is_value = kind in (Kind.LOCAL, Kind.RANDOM)
            seen = value if is_value else state(variable, kind)
            entry.seen.assign(seen, read_value=False)

    def make_coherent(self) -> None:
        """Emits the ops that make variables coherent after an incomplete run.

        It is unknown whether that run has executed its refresh, so this includes it:
        the second time it is the identity.
        """
        self.refresh()
        self.publish()

    def _is_changed(self) -> tf.Tensor:
        # One vector per type: comparing it is one op instead of one per variable.
        by_type = positions_by_dtype(entry.seen for entry in self.entries)
        differs = [
            tf.reduce_any(
                bits(_pack([state(e.variable, e.kind) for e in entries]))
                != bits(_pack([e.seen.value() for e in entries]))
            )
            for places in by_type.values()
            for entries in [[self.entries[place] for place in places]]
        ]
        return tf.reduce_any(tf.stack(differs))

    def _reset(self) -> tf.Tensor:
        # A change of one variable must not affect the copies of the others.
        for entry in self.entries:
            resets = {
                replica: copy
                for replica, copy in enumerate(entry.copies)
                if copy is not entry.variable and not self._is_held(entry, replica)
            }
            variables = (entry.variable, entry.seen, *resets.values())
            reset = self._reset_like(entry, tuple(resets))
            reset(*map(_tf_compat.handle, variables))
        return tf.constant(0)

    def _is_held(self, entry: Entry, replica: int) -> bool:
        """Whether a replica uses the copy of another one."""
        is_mirrored = entry.kind is Kind.MIRRORED
        return is_mirrored and self._topology.primaries[replica] != replica

    def _reset_like(self, entry: Entry, replicas: tuple[int, ...]) -> Any:
        """Returns the reset function of a variable, one per type and shape."""
        variable, kind = entry.variable, entry.kind
        key = (
            kind,
            variable.dtype,
            variable.device,
            is_summed(variable),
            replicas,
            variable.shape,
        )
        if key not in self._resets:
            self._resets[key] = traced_once(
                self._make_reset(entry, replicas),
                input_signature=[tf.TensorSpec([], tf.resource)] * (2 + len(replicas)),
            )
        return self._resets[key]

    def _make_reset(self, entry: Entry, replicas: Sequence[int]) -> Callable[..., None]:
        """Returns a function of handles that resets a variable like this one."""
        kind, dtype, device = entry.kind, entry.variable.dtype, entry.variable.device
        shape = entry.variable.shape
        is_sum = kind is Kind.LOCAL and is_summed(entry.variable)
        is_mirrored = kind is Kind.MIRRORED  # its copies are equal anyway
        topology, seen_dtype = self._topology, entry.seen.dtype

        def reset(own: tf.Tensor, seen: tf.Tensor, *copies: tf.Tensor) -> None:
            value = _read(own, dtype)
            value.set_shape(shape)
            with tf.device(device):
                now = state_of(value, kind, device)
            is_changed = is_mirrored or tf.reduce_any(
                bits(now) != bits(_read(seen, seen_dtype))
            )
            resets = []
            for replica, copy in zip(replicas, copies, strict=True):
                fresh = replica_value(
                    value,
                    kind,
                    topology.replica_id(replica),
                    topology.num_replicas,
                    is_sum=is_sum,
                )
                if not is_mirrored:
                    fresh = tf.where(is_changed, fresh, _read(copy, dtype))
                resets.append(_assign(copy, fresh))
            # Afterwards, so that an interrupted reset is repeated.
            with tf.control_dependencies(resets):
                _assign(seen, now)

        return reset


def _pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    flat = [v if v.shape.rank == 1 else tf.reshape(v, [-1]) for v in values]
    return tf.concat(flat, axis=0)


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
