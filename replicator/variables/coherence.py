"""Coherence: the user's own variables and the replicas' copies agree between steps.

Users read and write ordinary variables: they restore checkpoints, set weights, print
statistics. Before a run, ``refresh`` detects variables that were changed outside and
resets the replicas' copies from them; after it, ``publish`` updates the user's
variables from the replicas' results. Both are part of the graph of the run, so there is
no call that a user could forget. Variables that replicas share need neither.

The user's own variable is authoritative (record 0002), although replicas compute with
the copies: that is what makes ``tf.Variable``, Keras and checkpoints work unchanged.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.branch import Branch
from replicator.placement import devices as device_lib
from replicator.step.traced_once import traced_once
from replicator.variables.copy_values import replica_value
from replicator.variables.fingerprints import bits, state_of
from replicator.variables.kinds import Kind, is_summed
from replicator.variables.outside_values import OutsideValues
from replicator.variables.outside_writes import WriteCheck

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
        *,
        detects_writes: bool = True,
    ) -> None:
        """Prepares.

        Args:
          entries: Variables, of which those without copies are always coherent.
          topology: Where the replicas of this program are.
          group: The workers whose programs run side by side; None if there are none.
          detects_writes: Whether outside writes are looked for (``outside_writes``).
        """
        self.entries = tuple(entry for entry in entries if entry.seen is not None)
        self._topology = topology
        self._detects_writes = detects_writes
        self._resets: dict[tuple[Any, ...], Any] = {}
        self._branches: list[Branch] = []
        self._published = [entry for entry in self.entries if _is_published(entry)]
        self._values = OutsideValues(self._published, topology, group)

    def refresh(self) -> None:
        """Emits the check for outside writes, and the reset of changed variables."""
        if self.entries and self._detects_writes:
            self._reset_if(WriteCheck(self.entries).is_changed())

    def reset(self) -> None:
        """Resets copies that differ from what the user has written, unchecked.

        Partial variables stay: nobody but a restored checkpoint writes those, and it
        sets their copies (``VariableTable.restore``).
        """
        for call, variables in self._resets_of(Kind.PARTIAL):
            call(*map(_tf_compat.handle, variables))

    def publish(self) -> None:
        """Emits the update of the user's variables and records their state."""
        published = self._published
        values = self._values.read()
        for entry, value in zip(published, values, strict=True):
            entry.variable.assign(value, read_value=False)
        # Last: what the run itself wrote must not be found as a write of the user's.
        recorded = self.entries if self._detects_writes else published
        known = {id(e): value for e, value in zip(published, values, strict=True)}
        WriteCheck(recorded).record([known.get(id(entry)) for entry in recorded])

    def make_coherent(self) -> None:
        """Emits the ops that make variables coherent after an incomplete run.

        It is unknown whether that run has executed its refresh, so this includes it:
        the second time it is the identity.
        """
        self.refresh()
        self.publish()

    def _reset_if(self, is_changed: tf.Tensor) -> None:
        """Emits the reset where a variable is changed."""
        calls = self._resets_of()
        handles = [_tf_compat.handle(v) for _, variables in calls for v in variables]

        def reset(*of_all: tf.Tensor) -> None:
            rest = iter(of_all)
            for call, variables in calls:
                call(*itertools.islice(rest, len(variables)))

        dtypes = [tf.resource] * len(handles)
        # Not inlined: an untaken branch costs one node a step instead of thousands.
        traced = traced_once(
            reset,
            input_signature=[tf.TensorSpec([], dtype) for dtype in dtypes],
            experimental_attributes={"_noinline": True},
        ).get_concrete_function()
        device = device_lib.cpu_of(self._topology.replica_devices[0])
        branch = Branch(traced, dtypes, device)
        branch.call(is_changed, handles)
        self._branches.append(branch)

    def _resets_of(self, but: Kind | None = None) -> list[tuple[Any, tuple[Any, ...]]]:
        """By variable, so that a change of one leaves the copies of others alone."""
        calls = []
        for entry in self.entries:
            if entry.kind is but:
                continue
            resets = {
                replica: copy
                for replica, copy in enumerate(entry.copies)
                if copy is not entry.variable and not self._is_held(entry, replica)
            }
            variables = (entry.variable, entry.seen, *resets.values())
            calls.append((self._reset_like(entry, tuple(resets)), variables))
        return calls

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
        is_sum = is_summed(entry.variable)
        is_mirrored = kind is Kind.MIRRORED  # its copies are equal anyway
        topology, seen_dtype = self._topology, entry.seen.dtype

        def reset(own: tf.Tensor, seen: tf.Tensor, *copies: tf.Tensor) -> None:
            value = _read(own, dtype)
            value.set_shape(shape)
            with tf.device(device):
                now = state_of(value, kind, device)
            # Asked again, of this variable alone: any other one may have led here, and
            # statistics that differ between replicas by right must survive that.
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


def _is_published(entry: Entry) -> bool:
    """Whether no replica uses the user's own variable."""
    return not any(copy is entry.variable for copy in entry.copies)


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
