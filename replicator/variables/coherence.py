"""Coherence: the user's own variables and the replicas' copies agree between steps.

The user's own variable is authoritative, although replicas compute with copies: so
``tf.Variable``, Keras and checkpoints work unchanged. Before a run, ``refresh`` resets
the copies of variables that others have written; after it, ``publish`` gives the
user's variables the results. Both are part of the graph of the run, so there is no call
that a user could forget. After a run that failed, ``repair`` does what is left of both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator._tf import handles as _tf_handles
from replicator.collectives.transport import pack, positions_by_dtype
from replicator.core import devices
from replicator.core.step import traced_once
from replicator.core.validation import format_value, is_one_of
from replicator.errors import ReplicasOutOfSyncError
from replicator.variables.kinds import (
    Kind,
    OutsideValues,
    is_summed,
    replica_value,
    to_number,
)

if TYPE_CHECKING:
    from replicator.variables.table import Entry, VariableTable


# What the methods of a variable write reaches the copies at once (``VariableTable``).
# Raw ops and graphs leave nothing behind but the value: so the state with which copies
# agree (``Entry.last_synced``) of variables that others can write is compared before a
# dispatch and recorded after it. On GPUs that is one compiled function per device, and
# not 12 kernels for each variable; CPUs hash each by one op, which XLA would slow down.

_POLICIES = ("detect", "never")
# Odd multipliers of splitmix64 (Steele et al. 2014), less their sign bits.
_MIX_1 = 0x3F58476D1CE4E5B9
_MIX_2 = 0x14D049BB133111EB
# Integer types by width in bytes.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def are_detected(policy: Any) -> bool:
    """Whether an option ``external_writes`` requests the check."""
    if not is_one_of(policy, _POLICIES):
        raise ValueError(
            f"external_writes {format_value(policy)} is not one of 'detect' (variables "
            "that were written outside run() are found before each run) and 'never' "
            "(no check: call refresh_variables() after writing)"
        )
    return bool(policy == "detect")


def was_written(entry: Entry) -> bool:
    if entry.kind is Kind.MIRRORED:
        own = entry.variable.numpy().tobytes()
        others = [copy for copy in entry.copies if copy is not entry.variable]
        return any(copy.numpy().tobytes() != own for copy in others)
    if entry.kind is Kind.PARTIAL:  # of its copies only the mean has a meaning
        return False
    now = state(entry.variable, entry.kind)
    return bool(entry.last_synced.numpy().tobytes() != now.numpy().tobytes())


def _is_changed(entries: Iterable[Entry]) -> tf.Tensor:
    """Whether any of some entries that have a ``last_synced`` was written."""

    def differ(group: Sequence[Entry], device: str | None) -> tf.Tensor:
        # Compares each type as one vector: one op instead of one per variable.
        differences = []
        for places in positions_by_dtype(entry.last_synced for entry in group).values():
            of_type = [group[index] for index in places]
            now = bits(pack([_now(entry, device) for entry in of_type]))
            seen = bits(pack([entry.last_synced.value() for entry in of_type]))
            differences.append(tf.reduce_any(now != seen))
        return _any(differences)

    return _any(_by_device(entries, differ))


def _record(entries: Iterable[Entry], known: Mapping[int, tf.Tensor]) -> None:
    """Records the states of entries, of which some have a known value, by id."""

    def note(group: Sequence[Entry], device: str | None) -> None:
        for entry in group:
            is_whole = entry.variable.shape.is_fully_defined()
            is_value = device is None and entry.kind.is_per_replica and is_whole
            value = known.get(id(entry)) if is_value else None
            now = _now(entry, device) if value is None else value
            entry.last_synced.assign(now, read_value=False)

    _by_device(entries, note)


def _by_device(
    entries: Iterable[Entry], function: Callable[[Sequence[Entry], str | None], Any]
) -> list[Any]:
    """Calls a function compiled for each device, or with None to emit single ops."""
    groups: dict[str | None, list[Entry]] = {}
    for entry in entries:
        variable = entry.variable
        device = variable.device if is_compiled(variable) else None
        groups.setdefault(device, []).append(entry)

    def call(device: str | None, group: Sequence[Entry]) -> Any:
        if device is None:
            return function(group, None)
        with tf.device(device):
            return traced_once(lambda: function(group, device), jit_compile=True)()

    return [call(device, group) for device, group in groups.items()]


def _now(entry: Entry, device: str | None) -> tf.Tensor:
    if device is None:
        return state(entry.variable, entry.kind)
    # XLA has the device from the function; a scope of its own would be another one.
    variable = entry.variable
    return _state_of(variable.value(), entry.kind, device, variable.shape)


def _any(flags: Sequence[tf.Tensor]) -> tf.Tensor:
    return flags[0] if len(flags) == 1 else tf.reduce_any(tf.stack(flags))


class _Alike(NamedTuple):
    """What variables have in common whose copies one function resets."""

    kind: Kind
    dtype: tf.DType
    seen_dtype: tf.DType  # That of ``Entry.last_synced``.
    device: str
    shape: tf.TensorShape
    is_sum: bool
    replicas: tuple[int, ...]  # Whose copies are reset.
    is_certain: bool  # Whether they are, whatever the variable is.


class CopyRefresher:
    """Functions of handles that reset copies: one per type and shape."""

    def __init__(self, topology: devices.Topology) -> None:
        self._topology = topology
        self._functions: dict[_Alike, Any] = {}

    def apply(self, entries: Iterable[Entry], *, is_certain: bool) -> None:
        """Resets copies: of all that were written for certain, or those that differ."""
        primaries = self._topology.primaries
        for entry in entries:
            variable, is_mirrored = entry.variable, entry.kind is Kind.MIRRORED
            copies = {
                replica: copy
                for replica, copy in enumerate(entry.copies)
                if copy is not variable
                # Of mirrored variables, it may use the copy of another one.
                and not (is_mirrored and primaries[replica] != replica)
            }
            alike = _Alike(
                kind=entry.kind,
                dtype=variable.dtype,
                seen_dtype=entry.last_synced.dtype,
                device=variable.device,
                shape=variable.shape,
                is_sum=is_summed(variable),
                replicas=(*copies,),
                # Copies of mirrored ones are equal anyway.
                is_certain=is_certain or is_mirrored,
            )
            if alike not in self._functions:
                self._functions[alike] = self._made(alike)
            handled = variable, entry.last_synced, *copies.values()
            self._functions[alike](*map(_tf_handles.of, handled))

    def _made(self, alike: _Alike) -> Callable[..., None]:
        """Returns a function of handles that resets such a variable."""
        topology = self._topology

        def read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

        def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.AssignVariableOp(resource=handle, value=value)

        def reset(own: tf.Tensor, seen: tf.Tensor, *copies: tf.Tensor) -> None:
            value = read(own, alike.dtype)
            value.set_shape(alike.shape)
            with tf.device(alike.device):
                now = _state_of(value, alike.kind, alike.device, alike.shape)
            # Asked again, of this variable alone: any other one may have led here, and
            # statistics that differ between replicas by right must survive that.
            is_changed = alike.is_certain or tf.reduce_any(
                bits(now) != bits(read(seen, alike.seen_dtype))
            )
            resets = []
            for replica, copy in zip(alike.replicas, copies, strict=True):
                fresh = replica_value(
                    value,
                    alike.kind,
                    topology.replica_id(replica),
                    topology.num_replicas,
                    is_sum=alike.is_sum,
                )
                if not alike.is_certain:
                    both = fresh, read(copy, alike.dtype)
                    if alike.shape.is_fully_defined():
                        fresh = tf.where(is_changed, *both)
                    else:  # they may differ in size
                        fresh = tf.cond(is_changed, *[lambda x=x: x for x in both])
                resets.append(assign(copy, fresh))
            # Afterwards, so that an interrupted reset is repeated.
            with tf.control_dependencies(resets):
                assign(seen, now)

        handles = [tf.TensorSpec([], tf.resource)] * (2 + len(alike.replicas))
        return traced_once(reset, input_signature=handles)


def is_compiled(variable: Any) -> bool:
    """Whether a function of its device checks a variable; int32 is in host memory."""
    dtype = variable.dtype
    has_type = dtype.is_floating or dtype == tf.int64
    return has_type and not devices.is_cpu(variable.device)


def state(variable: Any, kind: Kind) -> tf.Tensor:
    """The value or fingerprint by which a change of a variable is detected."""
    # On the variable's device: of a remote one, only eight bytes are sent.
    with tf.device(variable.device):
        return _state_of(variable.value(), kind, variable.device, variable.shape)


def _state_of(
    value: tf.Tensor, kind: Kind, device: str, shape: tf.TensorShape
) -> tf.Tensor:
    def checksum(part: tf.Tensor) -> tf.Tensor:
        if devices.is_cpu(device):
            return tf.bitcast(tf.fingerprint(tf.reshape(part, [1, -1])), tf.int64)
        return _fingerprint(part)

    if not shape.is_fully_defined():
        return tf.concat([checksum(value), checksum(tf.shape(value))], axis=0)
    return value if kind.is_per_replica else checksum(value)


def bits(value: tf.Tensor) -> tf.Tensor:
    """The value as a vector of integers: equal bits compare equal, even NaN."""
    flat = tf.reshape(value, [-1])
    if value.dtype == tf.bool:
        return tf.cast(flat, tf.int64)
    if value.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(flat, 1 << 62)
    width = min(value.dtype.size, 8)  # of complex128: two halves
    return tf.cast(tf.reshape(tf.bitcast(flat, _BITS[width]), [-1]), tf.int64)


def _fingerprint(value: tf.Tensor) -> tf.Tensor:
    """A checksum of the bits, of ops with GPU kernels; CPUs hash 20 times faster."""
    # Scrambled first (as in splitmix64): a sum of plain bits by position would take
    # [3, 0] for [0, 1], and one round still confuses some small integers. Weights by
    # position, so that exchanged elements change the sum.
    mixed = bits(value) * _MIX_1
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29))
    mixed *= _MIX_2
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 32))
    places = tf.range(tf.size(mixed, out_type=tf.int64), dtype=tf.int64) * 2 + 1
    return tf.reduce_sum(mixed * places, keepdims=True)


_MOST_NAMED = 5


class Coherence:
    def __init__(
        self,
        entries: Sequence[Entry],
        topology: devices.Topology,
        resets: CopyRefresher,
        group: devices.Group | None = None,
        *,
        is_checked: Callable[[Entry], bool] = lambda _entry: True,
    ) -> None:
        # Variables with copies of their own.
        self.entries = tuple(
            entry for entry in entries if entry.last_synced is not None
        )
        self._topology = topology
        self._is_checked = is_checked
        self._resets = resets
        self._kept: list[Any] = []  # What calls in graphs need.
        self._published = [  # no replica uses the user's own variable
            entry
            for entry in self.entries
            if not any(copy is entry.variable for copy in entry.copies)
        ]
        # Which ``publish`` reads.
        self.values = OutsideValues(self._published, topology, group)

    def refresh(self, switch: Any = None) -> None:
        """Emits the check for outside writes, and the reset of changed variables."""
        is_any = switch is not None
        checked = [e for e in self.entries if is_any or self._is_checked(e)]

        def check() -> None:
            # Of all that are checked: each is compared again before it is reset.
            self._branch(
                _is_changed(checked),
                lambda: self._resets.apply(checked, is_certain=False),
                self._topology.cpu,
            )

        if checked:
            with _tf_handles.own():
                self._only_if(switch, check)

    @contextlib.contextmanager
    def kept(self, switch: Any = None) -> Iterator[None]:
        """Keeps variables coherent around the ops of a step, emitted in the block."""
        self.refresh(switch)
        yield
        self.publish(switch)

    def reset(self) -> None:
        """Resets copies that differ from what the user has written, unchecked."""
        # But of partial ones, which only a restored checkpoint writes, copies included.
        written = (entry for entry in self.entries if entry.kind is not Kind.PARTIAL)
        self._resets.apply(written, is_certain=False)

    def publish(self, switch: Any = None) -> None:
        """Emits the update of the user's variables and records their state."""
        known = {}
        with _tf_handles.own():
            for entry, value in zip(self._published, self.values.read(), strict=True):
                entry.variable.assign(value, read_value=False)
                known[id(entry)] = value
            # Last: what the run itself wrote is no write of the user's.
            recorded = [
                e for e in self.entries if id(e) in known or self._is_checked(e)
            ]
            _record(recorded, known)
            others = [entry for entry in self.entries if id(entry) not in known]
            if switch is not None and others:
                self._only_if(switch, lambda: _record(others, {}))

    def repair(self) -> None:
        """Emits the ops that make variables coherent after a run that failed."""
        # Copies that are to be equal become replica 0's; what each replica has of its
        # own stays, and the user's variable reads as if the run had ended there.
        with _tf_handles.own():
            # It is unknown whether that run came to its refresh; if it did, this is the
            # identity. Of partial variables, replica 0's is the user's own.
            of_own = (entry for entry in self.entries if entry.kind.is_per_replica)
            checked = filter(self._is_checked, of_own)
            self._resets.apply(checked, is_certain=False)
            for entry, value in zip(self._published, self.values.read(), strict=True):
                entry.variable.assign(value, read_value=False)
            for entry in self.entries:
                if entry.kind is not Kind.MIRRORED:
                    now = state(entry.variable, entry.kind)
                    entry.last_synced.assign(now, read_value=False)
            alike = [e for e in self.entries if e.kind in (Kind.MIRRORED, Kind.RANDOM)]
            self._resets.apply(alike, is_certain=True)

    def _only_if(self, switch: Any, emit: Callable[[], None]) -> None:
        """Emits ops, which run only where a switch is on when they are to."""
        if switch is None:
            emit()
        else:
            self._branch(switch.read_value(), emit, switch.device)

    def _branch(
        self, condition: tf.Tensor, emit: Callable[[], None], device: str
    ) -> None:
        """Emits a call of ops, which run only where a condition holds."""
        # Not inlined: an untaken branch costs one node a step instead of thousands.
        traced = traced_once(
            emit, experimental_attributes={"_noinline": True}
        ).get_concrete_function()
        if _tf_distribute.is_compiled_graph():  # XLA has no other branches
            tf.cond(condition, traced, lambda: None)
            return
        args = traced.captured_inputs
        self._kept.append(_tf_distribute.call_if(condition, traced, args, device))


def consolidate(
    entries: Iterable[Entry],
    topology: devices.Topology,
    add_up: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
) -> None:
    """Makes all copies of each partial variable their mean, before it is saved."""
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
        if entry.last_synced is not None:  # of one replica on each worker, it is
            entry.last_synced.assign(state(entry.variable, entry.kind))


def check_in_sync(table: VariableTable) -> None:
    """Compares the copies of all mirrored variables, bit by bit."""
    differing = [
        entry.variable.name
        for entry in table.entries()
        if entry.kind is Kind.MIRRORED
        and not table.ownership.is_slot(entry.variable)  # it exists once
        and was_written(entry)
    ]
    remedy = "assign variables outside run(): the next run() then resets all copies"
    if not table.detects_writes:
        remedy = (
            "with external_writes='never', call refresh_variables() after writing "
            "variables outside run()"
        )
    report_out_of_sync(differing, f"; {remedy}")


def report_out_of_sync(differing: Sequence[str], remedy: str = "") -> None:
    """Raises an error if any variables differ."""
    if differing:
        raise ReplicasOutOfSyncError(
            f"{len(differing)} mirrored variables differ between replicas: "
            f"{', '.join(differing[:_MOST_NAMED])}{remedy}"
        )


def check_promise(table: VariableTable, variables: Sequence[Any]) -> None:
    """Rejects variables that were written although nobody was to write them."""
    if table.detects_writes:
        return
    written = [
        entry.variable.name
        for entry in table.entries_of(variables)
        if entry.last_synced is not None and was_written(entry)
    ]
    if written:
        raise ReplicasOutOfSyncError(
            f"{len(written)} variables were written outside run() although "
            f"external_writes='never': {', '.join(written[:_MOST_NAMED])}; call "
            "refresh_variables() after writing, or use external_writes='detect'"
        )
