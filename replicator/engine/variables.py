"""Variables: one copy where replicas share memory, one per replica where they do not.

Four kinds. *Mirrored* variables have the same value on every replica; replica 0 uses
the user's own variable, and so do replicas that share its memory; each other memory
keeps a copy. *Local* variables
(batch-norm statistics) have a copy per replica that may differ; outside steps, the
user's own variable holds their mean. *Random* variables are the state of random
generators; each replica's copy is the user's state with the replica id folded in, and
outside steps the user's own variable holds that of replica 0. *Partial* variables
(gradients that were not averaged yet) have a copy per replica of which only the mean
counts: replica 0 uses the user's own variable, what it holds is not published, since
that would communicate after every run, and ``settle`` makes all copies their mean.
"""

from __future__ import annotations

import dataclasses
import enum
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat, creation
from replicator import devices as device_lib
from replicator.engine.ownership import Ownership, num_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.topology import Topology

# Odd constants of Knuth's multiplicative hash: distinct replicas get distinct keys.
_FOLD_31 = 0x1E3779B1
_FOLD_63 = 0x1E3779B97F4A7C15
# Odd multipliers of splitmix64 (Steele et al. 2014), less their sign bits.
_MIX_1 = 0x3F58476D1CE4E5B9
_MIX_2 = 0x14D049BB133111EB
# Integer types by width in bytes.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}
# Attribute by which a variable holds its entries, by the table they are in.
_ENTRIES = "_replicator_entries"
# Attribute that says that the copies of a variable are partial.
_IS_PARTIAL = "_replicator_is_partial"


class Kind(enum.Enum):
    """How the copies of a variable relate."""

    MIRRORED = "mirrored"
    LOCAL = "local"
    RANDOM = "random"
    PARTIAL = "partial"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A user's variable and the variables that replicas use in its place.

    Attributes:
      variable: The user's own.
      kind: How the copies relate.
      copies: By replica of the program; the user's own may be among them, and
        replicas that share memory share a copy of a mirrored variable.
      seen: What the copies agree with: the value, or for mirrored and partial
        variables a fingerprint of it, that the user's own variable had last; None if
        there are no other copies.
    """

    variable: Any
    kind: Kind
    copies: tuple[Any, ...]
    seen: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LocalState:
    """What the replicas hold of a variable whose copies differ.

    Attributes:
      variable: The user's own.
      kind: ``LOCAL`` or ``RANDOM``.
      values: NumPy arrays, by replica.
    """

    variable: Any
    kind: Kind
    values: tuple[Any, ...]


class VariableTable:
    """All variables that the steps of one replicator use.

    Attributes:
      ownership: Who updates which variable, with a sharded update.
      version: Grows when a variable changes kind, so that programs built before know.
    """

    def __init__(self, topology: Topology) -> None:
        self.version = 0
        self._topology = topology
        self.ownership = Ownership(topology)
        # Weak: an entry lives as long as its variable, which holds it, or a program.
        self._entries: weakref.WeakValueDictionary[int, Entry] = (
            weakref.WeakValueDictionary()
        )
        self._restored: dict[int, tuple[bytes, LocalState]] = {}

    def kind(self, variable: Any) -> Kind:
        """What is known of a variable: its entry, or what its own flags say."""
        if self._topology.num_replicas == 1:
            return Kind.MIRRORED
        entry = self._entries.get(id(variable))
        return entry.kind if entry else declared_kind(variable)

    def require(self, variable: Any, kind: Kind) -> Entry:
        """Returns the entry of a variable, making its copies on first use."""
        entry = self._entries.get(id(variable))
        if entry is not None and entry.kind is kind:
            return entry
        if entry is not None:
            self.version += 1
        with tf.init_scope(), creation.allowed():
            copies = self._copies(variable, kind)
            has_copies = any(copy is not variable for copy in copies)
            entry = Entry(
                variable=variable,
                kind=kind,
                copies=copies,
                seen=tf.Variable(state(variable, kind), trainable=False)
                if has_copies
                else None,
            )
        self._entries[id(variable)] = entry
        if not hasattr(variable, _ENTRIES):
            setattr(variable, _ENTRIES, weakref.WeakKeyDictionary())
        getattr(variable, _ENTRIES)[self] = entry
        return entry

    def entries(self) -> list[Entry]:
        """All entries, in the order of first use."""
        return list(self._entries.values())

    def entries_of(self, variables: Sequence[Any]) -> list[Entry]:
        """The entries of those variables that have one, in their order."""
        found = (self._entries.get(id(variable)) for variable in variables)
        return [entry for entry in found if entry is not None]

    def bytes_by_device(self, variables: Sequence[Any]) -> dict[str, int]:
        """Bytes that variables of static shape take on each device, with all copies.

        Args:
          variables: Keras or TensorFlow variables; those of no step count once.
        """
        sizes: dict[str, int] = {}
        for variable in map(_tf_compat.unwrap, variables):
            if self.ownership.is_elsewhere(variable):
                continue
            entry = self._entries.get(id(variable))
            copies = (variable,) if entry is None else entry.copies
            for copy in {id(c): c for c in copies}.values():
                sizes[copy.device] = sizes.get(copy.device, 0) + num_bytes(copy)
        return sizes

    def local_state(self) -> list[LocalState]:
        """What the copies hold that differ between replicas."""
        return [
            LocalState(
                variable=entry.variable,
                kind=entry.kind,
                values=tuple(copy.numpy() for copy in entry.copies),
            )
            for entry in self._entries.values()
            if entry.kind in (Kind.LOCAL, Kind.RANDOM)
        ]

    def restore(self, saved: Sequence[LocalState]) -> None:
        """Sets the copies that differ, now or when a step first needs them.

        Args:
          saved: Values of all replicas of the job, of variables that were just set. As
            many as here: each copy gets its own. Otherwise, and for variables that are
            not among them, the copies start from the user's variable.
        """
        whole = [s for s in saved if len(s.values) == self._topology.num_replicas]
        self._restored = {
            id(state.variable): (state.variable.numpy().tobytes(), state)
            for state in whole
        }
        for entry in self._entries.values():
            if entry.kind is Kind.MIRRORED:
                continue
            values = self._initial_values(entry.variable, entry.kind)
            for copy, value in zip(entry.copies, values, strict=True):
                copy.assign(value)
            entry.seen.assign(state(entry.variable, entry.kind))

    def _initial_values(self, variable: Any, kind: Kind) -> list[Any]:
        """What the copies of this program's replicas start from."""
        topology = self._topology
        replica_ids = [topology.replica_id(r) for r in range(len(topology.devices))]
        value, restored = self._restored.pop(id(variable), (b"", None))
        # A variable that was set since the restore is the truth, as always.
        if restored is not None and value == variable.numpy().tobytes():
            return [tf.constant(restored.values[r]) for r in replica_ids]
        return [
            replica_value(variable, kind, replica_id, topology.num_replicas)
            for replica_id in replica_ids
        ]

    def _copies(self, variable: Any, kind: Kind) -> tuple[Any, ...]:
        topology = self._topology
        is_mirrored = kind is Kind.MIRRORED
        if is_mirrored and self.ownership.is_slot(variable):
            return (variable,) * topology.num_local_replicas
        initial = [] if is_mirrored else self._initial_values(variable, kind)
        copies: list[Any] = []
        for replica, devices in enumerate(topology.devices):
            replica_id = topology.replica_id(replica)
            if is_mirrored and topology.holders[replica] != replica:
                copies.append(copies[topology.holders[replica]])
                continue
            if replica == 0 and kind in (Kind.MIRRORED, Kind.PARTIAL):
                copies.append(variable)
                continue
            place = topology.logical_device_of(variable.device)
            with tf.device(devices[place]):
                copies.append(
                    tf.Variable(
                        tf.identity(variable) if is_mirrored else initial[replica],
                        trainable=False,
                        dtype=variable.dtype,
                        shape=variable.shape,
                        name=f"{variable.name.partition(':')[0]}/replica_{replica_id}",
                    )
                )
        return tuple(copies)


def declared_kind(variable: Any) -> Kind:
    """The kind that a variable's own flags ask for, before any step is analyzed."""
    if getattr(variable, _IS_PARTIAL, False):
        return Kind.PARTIAL
    name = variable.name.partition(":")[0].rpartition("/")[2]
    is_keras_state = name.startswith("seed_generator_state") and variable.shape == (2,)
    is_generator_state = name == "StateVar" and variable.dtype == tf.int64
    if is_keras_state or is_generator_state:
        return Kind.RANDOM
    if variable.synchronization == tf.VariableSynchronization.ON_READ:
        return Kind.LOCAL
    return Kind.MIRRORED


def declare_partial(variable: Any) -> None:
    """Says of a variable that only the mean of its copies counts."""
    setattr(variable, _IS_PARTIAL, True)


def replica_value(
    variable: Any, kind: Kind, replica_id: int, num_replicas: int
) -> tf.Tensor:
    """What a replica's copy becomes when the user has set the variable."""
    value = tf.identity(variable)
    if kind is Kind.LOCAL and is_summed(variable):
        # Copies must sum to the value; replica 0 takes what is left of a division.
        share = tf.zeros_like(value) if num_replicas == 1 else value // num_replicas
        return value - share * (num_replicas - 1) if replica_id == 0 else share
    if kind is not Kind.RANDOM or replica_id == 0:
        return value
    # Keras: [seed, counter]; tf.random.Generator: [counter, counter, key].
    is_keras = value.shape == (2,)
    limit = 31 if value.dtype.size == 4 else 63  # noqa: PLR2004 (bytes of int32)
    key = (_FOLD_31 if limit == 31 else _FOLD_63) * replica_id % (1 << limit)  # noqa: PLR2004
    position = 0 if is_keras else value.shape[0] - 1
    mask = tf.one_hot(position, value.shape[0], dtype=value.dtype) * tf.constant(
        key, value.dtype
    )
    return tf.bitwise.bitwise_xor(value, mask)


def state(variable: Any, kind: Kind) -> tf.Tensor:
    """What tells whether a variable was changed: its value, or a fingerprint of it."""
    # Where the variable is: of a remote one, eight bytes travel instead of all.
    with tf.device(variable.device):
        value = tf.identity(variable)
        if kind in (Kind.LOCAL, Kind.RANDOM):
            return value
        if device_lib.is_cpu(variable.device):
            hashed = tf.fingerprint(tf.reshape(value, [1, -1]))
            return tf.bitcast(hashed[0], tf.int64)
        return _fingerprint(value)


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
    """A checksum of the bits by ops that GPUs have; CPUs hash 20 times faster."""
    # Scrambled first (as in splitmix64): a sum of plain bits by position would take
    # [3, 0] for [0, 1], and one round still confuses some small integers. Weights by
    # position, so that exchanged elements change the sum.
    mixed = bits(value) * _MIX_1
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29))
    mixed *= _MIX_2
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 32))
    places = tf.range(tf.size(mixed, out_type=tf.int64), dtype=tf.int64) * 2 + 1
    return tf.reduce_sum(mixed * places)


def outside_value(entry: Entry) -> tf.Tensor:
    """What the user's own variable reads as between steps: mean, or replica 0."""
    copies = [tf.identity(copy) for copy in entry.copies]
    return combine(entry.variable, entry.kind, copies)


def combine(variable: Any, kind: Kind, copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """Reads the copies of all replicas as one: sum, mean, or that of replica 0."""
    if kind is not Kind.LOCAL:
        return copies[0]
    if is_summed(variable):
        return tf.add_n(copies)
    if not is_averaged(variable):
        return copies[0]
    return tf.add_n(copies) / tf.cast(len(copies), copies[0].dtype)


def is_averaged(variable: Any) -> bool:
    """Whether a replica-local variable reads as the mean over replicas outside."""
    is_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_mean = not is_first and not is_summed(variable)
    return is_mean and bool(variable.dtype.is_floating)


def is_summed(variable: Any) -> bool:
    """Whether a replica-local variable reads as the sum over replicas outside."""
    dtype = variable.dtype
    return variable.aggregation == tf.VariableAggregation.SUM and (
        dtype.is_floating or dtype.is_integer
    )
