"""Kinds of variables, by how the copies of the replicas relate.

*Mirrored* variables have the same value on every replica. *Local* variables
(batch-norm statistics) have a copy per replica that may differ; outside steps they read
as the mean. *Random* variables are the state of random generators; each replica's copy
is the user's state with the replica id folded in, and outside it is that of replica 0.
*Partial* variables (gradients that are not averaged yet) have a copy per replica of
which only the mean has a meaning; it is not published after every run, because that
would communicate: ``coherence.consolidate`` sets all copies to it.

What users read between steps, and what workers exchange, are ops for ``tf.function``s
around the linked step, in which ``Chain`` emits nodes. The copies of a replica are sent
as one vector per type, however many they are; between the processes of one graph it is
one per process, which adds those of its replicas first, and between workers one
reduction per type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import handles as _tf_handles
from replicator.collectives.transport import (
    pack,
    positions_by_dtype,
    unpack,
    wire_over_workers,
)
from replicator.core import devices as devices_lib
from replicator.core.devices import CPU_GROUP_KEY, GPU_GROUP_KEY, NCCL_DTYPES
from replicator.core.step import traced_once
from replicator.errors import OtherReplicatorError

if TYPE_CHECKING:
    from replicator.core.devices import Group, Topology
    from replicator.variables.table import Entry, LocalState

# Attribute that marks a variable as partial.
_IS_PARTIAL = "_replicator_is_partial"
# Attribute that marks a variable as a sum, of which each replica has a part.
_IS_SUM = "_replicator_is_sum"
# Odd constants of Knuth's multiplicative hash: distinct replicas get distinct keys.
_FOLD_31 = 0x1E3779B1
_FOLD_63 = 0x1E3779B97F4A7C15


class Kind(enum.Enum):
    MIRRORED = "mirrored"
    LOCAL = "local"
    RANDOM = "random"
    PARTIAL = "partial"

    @property
    def is_per_replica(self) -> bool:
        """Whether each copy has a value of its own, which counts."""
        return self in (Kind.LOCAL, Kind.RANDOM)


def declared_kind(variable: Any) -> Kind:
    """The kind according to a variable's own flags, before any step is analyzed."""
    if getattr(variable, _IS_PARTIAL, False):
        return Kind.PARTIAL
    name = variable.name.partition(":")[0].rpartition("/")[2]
    is_keras_state = name.startswith("seed_generator_state") and variable.shape == (2,)
    is_generator_state = name == "StateVar" and variable.dtype == tf.int64
    if is_keras_state or is_generator_state:
        return Kind.RANDOM
    is_on_read = variable.synchronization == tf.VariableSynchronization.ON_READ
    is_local = is_on_read or getattr(variable, _IS_SUM, False)
    return Kind.LOCAL if is_local else Kind.MIRRORED


def declare_partial(variable: Any) -> None:
    setattr(variable, _IS_PARTIAL, True)


def declare_summed(variable: Any) -> None:
    setattr(variable, _IS_SUM, True)


def is_summed(variable: Any) -> bool:
    """Whether a replica-local variable reads as the sum over replicas outside."""
    dtype = variable.dtype
    is_sum = variable.aggregation == tf.VariableAggregation.SUM
    return (is_sum or getattr(variable, _IS_SUM, False)) and (
        dtype.is_floating or dtype.is_integer
    )


def replica_value(
    value: tf.Tensor,
    kind: Kind,
    replica_id: int,
    num_replicas: int,
    *,
    is_sum: bool = False,
) -> tf.Tensor:
    """The value of a replica's copy after the user has set the variable."""
    if kind is Kind.LOCAL and is_sum:
        # Copies must sum to the value; replica 0 takes the remainder of the division.
        share = tf.zeros_like(value) if num_replicas == 1 else value // num_replicas
        return value - share * (num_replicas - 1) if replica_id == 0 else share
    if kind is not Kind.RANDOM or replica_id == 0:
        return value
    # Keras: [seed, counter]; tf.random.Generator: [counter, counter, key].
    is_keras = value.shape == (2,)
    limit = 31 if value.dtype.size == 4 else 63  # noqa: PLR2004 (bytes of int32)
    key = (_FOLD_31 if limit == 31 else _FOLD_63) * replica_id % (1 << limit)  # noqa: PLR2004
    position = 0 if is_keras else value.shape[0] - 1
    mask = tf.one_hot(position, value.shape[0], key, 0, dtype=value.dtype)
    return tf.bitwise.bitwise_xor(value, mask)


def check_foreign(variable: Any) -> None:
    """Rejects a variable of whose copies a step of this library uses only the first."""
    copies = _tf_compat.strategy_copies(variable)
    if copies is not None:
        raise _foreign_error(variable.name, *copies)


@contextlib.contextmanager
def foreign_explained() -> Iterator[None]:
    """Raises the same error where TensorFlow only says that two strategies meet."""
    try:
        yield
    except RuntimeError as error:
        mixed = _tf_distribute.mixed_variable(error)
        if mixed is None:
            raise
        raise _foreign_error(*mixed) from error


def _foreign_error(name: str, strategy: str, num_copies: int) -> OtherReplicatorError:
    return OtherReplicatorError(
        f"variable {name!r} was created in the scope of a {strategy}, "
        f"which keeps {num_copies} copies of it, and this replicator would use and "
        "update only the first; create the model inside `with repl.context():`, "
        "or run the step with replicator.StrategyReplicator(strategy)"
    )


def combine(state: LocalState, copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """Combines the copies of all replicas: sum, mean, or that of replica 0."""
    if not _is_from_all(state):
        return copies[0]
    total = tf.add_n(list(map(to_number, copies)))
    return _from_total(state.variable, total, len(copies))


class OutsideValues:
    """The values of some variables, as ops of the graph that is being built."""

    def __init__(
        self, entries: Sequence[Entry], topology: Topology, group: Group | None = None
    ) -> None:
        self._entries = tuple(entries)
        self._topology = topology
        self._workers = None if group is None else Workers(topology, group)
        # By place, those that are reduced over workers.
        self._sent = {
            index: entry
            for index, entry in enumerate(self._entries)
            if group is not None
            and entry.kind is Kind.LOCAL
            and entry.variable.dtype != tf.string
        }
        # Drawn once: a function that is traced again uses the same.
        self._keys: dict[tf.DType, int] = {}
        for entry in self._sent.values():
            wire = wire_over_workers(_number(entry.variable.dtype), "all_reduce").dtype
            self._keys.setdefault(wire, next(group.keys))  # type: ignore[union-attr]

    @property
    def are_sent(self) -> bool:
        """Whether reading them is communication with other workers."""
        return bool(self._sent)

    def read(self) -> list[tf.Tensor]:
        # Here sums, where they are sent to be added to those of other workers.
        values: dict[int, tf.Tensor] = {}
        for places in _alike(self._entries):
            alike = [self._entries[index] for index in places]
            combined = _combine_alike(alike, is_sent=self._workers is not None)
            values.update(zip(places, combined, strict=True))
        for index, entry in enumerate(self._entries):
            if index not in values:
                values[index] = self._first_value(entry)
        if self._workers is not None:
            values |= self._over_workers(values, self._workers)
        return [values[index] for index in range(len(self._entries))]

    def _over_workers(
        self, values: dict[int, tf.Tensor], workers: Workers
    ) -> dict[int, tf.Tensor]:
        def share(index: int, entry: Entry) -> tf.Tensor:
            own = to_number(values[index])
            # Of some variables only the value of replica 0 of the job counts.
            is_counted = self._topology.program_id == 0 or _is_from_all(entry)
            return own if is_counted else tf.zeros_like(own)

        def transfer(value: tf.Tensor) -> tf.Tensor:
            device = reduction_device(self._topology, value.dtype)
            return workers.reduce(value, self._keys[value.dtype], device)

        def of_job(entry: Entry, total: tf.Tensor) -> tf.Tensor:
            if not _is_from_all(entry):
                return tf.cast(total, entry.variable.dtype)
            with tf.device(_kernel_device(entry)):
                return _from_total(entry.variable, total, self._topology.num_replicas)

        shares = [share(index, entry) for index, entry in self._sent.items()]
        totals = _packed(shares, transfer, "all_reduce")
        results = map(of_job, self._sent.values(), totals)
        return dict(zip(self._sent, results, strict=True))

    def _first_value(self, entry: Entry) -> tf.Tensor:
        value = entry.copies[0].value()
        if entry.kind is not Kind.RANDOM:
            return value
        # The fold is its own inverse: this is the state of replica 0 of the job, which
        # need not be sent.
        topology = self._topology
        return replica_value(
            value, Kind.RANDOM, topology.first_replica_id, topology.num_replicas
        )


def reduction_device(topology: Topology, dtype: tf.DType) -> str:
    """Where values of a type are summed over workers: on GPUs if NCCL can do it."""
    device = topology.replica_devices[0]
    is_refused = topology.has_virtual_gpus or dtype not in NCCL_DTYPES
    is_nccl = devices_lib.is_gpu(device) and not is_refused
    return device if is_nccl else topology.cpu


def _is_from_all(entry: Entry | LocalState) -> bool:
    """Whether the copies of all replicas count, and not that of replica 0 alone."""
    variable = entry.variable
    is_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_mean = variable.dtype.is_floating and not is_first
    return entry.kind is Kind.LOCAL and (is_mean or is_summed(variable))


def _from_total(variable: Any, total: tf.Tensor, num_replicas: int) -> tf.Tensor:
    """The sum over replicas, or their mean."""
    if not is_summed(variable):
        total = total / tf.constant(num_replicas, total.dtype)
    return tf.cast(total, variable.dtype)


def _number(dtype: tf.DType) -> tf.DType:
    """In what copies are added: of float16 the sum may overflow, and not the mean."""
    return {tf.bool: tf.int32, tf.float16: tf.float32}.get(dtype, dtype)


def to_number(value: tf.Tensor) -> tf.Tensor:
    """A copy in the type in which copies are added."""
    return tf.cast(value, _number(value.dtype))


def _alike(entries: Sequence[Entry]) -> list[list[int]]:
    """Which variables are combined as one vector."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, entry in enumerate(entries):
        if _is_from_all(entry):
            alone = -1 if entry.variable.shape.is_fully_defined() else index
            devices = tuple(copy.device for copy in entry.copies)
            what = entry.variable.dtype, is_summed(entry.variable)
            key = what, _kernel_device(entry), devices, alone
            groups.setdefault(key, []).append(index)
    return list(groups.values())


def _combine_alike(entries: Sequence[Entry], *, is_sent: bool) -> list[tf.Tensor]:
    """Combines the copies of variables of one type that lie on the same devices."""
    first = entries[0]

    dtype, shapes = first.variable.dtype, [entry.variable.shape for entry in entries]

    def read_all(*handles: tf.Tensor) -> tf.Tensor:
        values = []
        for handle, shape in zip(handles, shapes, strict=True):
            values.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
            values[-1].set_shape(shape)
        return to_number(pack(values))

    # Calls: the end of each is one node here, where the end of each read would be one
    # for which the caller's device waits. Of replicas on one device, one function.
    signature = [tf.TensorSpec([], tf.resource)] * len(entries)
    read = functools.cache(lambda _: traced_once(read_all, input_signature=signature))
    vectors = []
    for replica, copy in enumerate(first.copies):
        with tf.device(copy.device):
            if len(entries) == 1:
                vectors.append(to_number(copy.value()))
            else:
                of_replica = [_tf_handles.of(e.copies[replica]) for e in entries]
                vectors.append(read(copy.device)(*of_replica))
    added = []
    for replicas in _near(first):
        with tf.device(_kernel_device(first, first.copies[replicas[0]].device)):
            of_process = [vectors[replica] for replica in replicas]
            added.append(tf.add_n(of_process) if len(replicas) > 1 else of_process[0])
    with tf.device(_kernel_device(first)):
        total = tf.add_n(added)
        if not is_sent:
            total = _from_total(first.variable, total, len(first.copies))
        return [total] if len(entries) == 1 else unpack(total, shapes)


def _near(entry: Entry) -> list[list[int]]:
    """Replicas whose copies are added before they are sent: of another process."""
    near: dict[str, list[int]] = {}
    for replica, copy in enumerate(entry.copies):
        near.setdefault(devices_lib.process(copy.device), []).append(replica)
    own = near.pop(devices_lib.process(_kernel_device(entry)), [])
    return [[replica] for replica in own] + list(near.values())


def _kernel_device(entry: Entry, device: str | None = None) -> str:
    """The device of a variable, or the CPU beside it, which has the kernels to add."""
    device = device or entry.variable.device
    return device if entry.variable.dtype.is_floating else devices_lib.cpu_of(device)


@dataclasses.dataclass(frozen=True)
class Workers:
    """The workers of a job, which exchange values on the CPU of replica 0."""

    topology: Topology
    group: Group

    def add_up(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        keys = self.group.keys
        return _packed(values, lambda x: self.reduce(x, next(keys)), "all_reduce")

    def broadcast_initial_values(self, variables: Sequence[Any]) -> None:
        """Broadcasts the initial values of variables from worker 0 to all workers."""
        movable = [v for v in variables if v.dtype != tf.string]
        received = self._broadcast(list(map(tf.convert_to_tensor, movable)), 0)
        for variable, value in zip(movable, received, strict=True):
            # Not where it is equal: that would reset what a checkpoint has restored.
            is_other = variable.numpy().tobytes() != value.numpy().tobytes()
            if self.group.worker_id and is_other:
                variable.assign(value)

    def move(self, variable: Any, source: int) -> tf.Tensor:
        is_here = source == self.group.worker_id
        value = variable if is_here else tf.zeros(variable.shape, variable.dtype)
        return self._broadcast([tf.convert_to_tensor(value)], source)[0]

    def _broadcast(self, values: Sequence[tf.Tensor], source: int) -> list[tf.Tensor]:
        def send(value: tf.Tensor) -> tf.Tensor:
            common = {
                "group_size": self.group.num_workers,
                "group_key": CPU_GROUP_KEY,
                "instance_key": next(self.group.keys),
                "communication_hint": "ring",
            }
            with tf.device(self.topology.cpu):
                if self.group.worker_id == source:
                    return tf.raw_ops.CollectiveBcastSendV2(input=value, **common)
                return tf.raw_ops.CollectiveBcastRecvV2(
                    T=value.dtype, shape=tf.shape(value), **common
                )

        return _packed(values, send, "broadcast")

    def reduce(self, value: tf.Tensor, key: int, device: str = "") -> tf.Tensor:
        """Emits the sum of one tensor over all workers."""
        target = device or self.topology.cpu
        is_gpu = devices_lib.is_gpu(target)
        with tf.device(target):
            return tf.raw_ops.CollectiveReduceV2(
                input=value,
                group_size=self.group.num_workers,
                group_key=GPU_GROUP_KEY if is_gpu else CPU_GROUP_KEY,
                instance_key=key,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="nccl" if is_gpu else "ring",
            )


def _packed(
    values: Sequence[tf.Tensor], transfer: Callable[[tf.Tensor], tf.Tensor], kind: str
) -> list[tf.Tensor]:
    """Transfers values as one vector per type that is sent."""
    wires = [wire_over_workers(value.dtype, kind) for value in values]
    wide = [wire.convert(value) for wire, value in zip(wires, values, strict=True)]
    results: dict[int, tf.Tensor] = {}
    for places in positions_by_dtype(wide).values():
        flat = [tf.reshape(wide[index], [-1]) for index in places]
        # One element more: TensorFlow may crash on vectors without elements.
        flat.append(tf.zeros([1], flat[0].dtype))
        received = transfer(tf.concat(flat, axis=0))
        parts = tf.split(received, [tf.size(part) for part in flat])[:-1]
        for index, part in zip(places, parts, strict=True):
            shaped = tf.reshape(part, tf.shape(wide[index]))
            results[index] = wires[index].convert(shaped, values[index].dtype)
    return [results[index] for index in range(len(values))]
