"""Resets: copies of the replicas get what the user's own variable holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import handles as _tf_handles
from replicator.step.traced_once import traced_once
from replicator.variables.copy_values import replica_value
from replicator.variables.fingerprints import bits, state_of
from replicator.variables.kinds import Kind, is_summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replicator.placement.topology import Topology
    from replicator.variables.table import Entry

Reset = tuple["Callable[..., None]", tuple[Any, ...]]


class Resets:
    """The functions that reset the copies of variables: one per type and shape.

    They take handles, so that all variables and programs of one replicator share them.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._functions: dict[tuple[Any, ...], Any] = {}

    def of(self, entry: Entry, *, is_certain: bool) -> Reset:
        """The reset of a variable that has copies: a function, and its variables."""
        replicas = {
            replica: copy
            for replica, copy in enumerate(entry.copies)
            if copy is not entry.variable and not self._is_held(entry, replica)
        }
        variables = (entry.variable, entry.seen, *replicas.values())
        # Copies of mirrored variables are equal anyway.
        is_certain = is_certain or entry.kind is Kind.MIRRORED
        return self._function(entry, tuple(replicas), is_certain), variables

    def force(self, entries: Iterable[Entry]) -> None:
        """Resets the copies of variables that were written; in graphs and eagerly."""
        for entry in entries:
            call, variables = self.of(entry, is_certain=True)
            call(*map(_tf_handles.of, variables))

    def _is_held(self, entry: Entry, replica: int) -> bool:
        """Whether a replica uses the copy of another one."""
        is_mirrored = entry.kind is Kind.MIRRORED
        return is_mirrored and self._topology.primaries[replica] != replica

    def _function(
        self, entry: Entry, replicas: tuple[int, ...], is_certain: bool
    ) -> Callable[..., None]:
        variable, kind = entry.variable, entry.kind
        key = (
            kind,
            variable.dtype,
            variable.device,
            is_summed(variable),
            replicas,
            variable.shape,
            is_certain,
        )
        if key not in self._functions:
            self._functions[key] = traced_once(
                self._make(entry, replicas, is_certain),
                input_signature=[tf.TensorSpec([], tf.resource)] * (2 + len(replicas)),
            )
        return self._functions[key]

    def _make(
        self, entry: Entry, replicas: Sequence[int], is_certain: bool
    ) -> Callable[..., None]:
        """Returns a function of handles that resets a variable like this one."""
        kind, dtype, device = entry.kind, entry.variable.dtype, entry.variable.device
        shape = entry.variable.shape
        is_sum = is_summed(entry.variable)
        topology, seen_dtype = self._topology, entry.seen.dtype

        def reset(own: tf.Tensor, seen: tf.Tensor, *copies: tf.Tensor) -> None:
            value = _read(own, dtype)
            value.set_shape(shape)
            with tf.device(device):
                now = state_of(value, kind, device, shape)
            # Asked again, of this variable alone: any other one may have led here, and
            # statistics that differ between replicas by right must survive that.
            is_changed = is_certain or tf.reduce_any(
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
                if not is_certain:
                    fresh = _choose(is_changed, fresh, _read(copy, dtype), shape)
                resets.append(_assign(copy, fresh))
            # Afterwards, so that an interrupted reset is repeated.
            with tf.control_dependencies(resets):
                _assign(seen, now)

        return reset


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _choose(
    condition: tf.Tensor, one: tf.Tensor, other: tf.Tensor, shape: tf.TensorShape
) -> tf.Tensor:
    """One of two values of a variable; those of unknown shape may differ in size."""
    if shape.is_fully_defined():
        return tf.where(condition, one, other)
    return tf.cond(condition, lambda: one, lambda: other)
