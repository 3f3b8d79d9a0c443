"""Commit: a worker's atomic update of the variables on one server.

The update runs in a locked section of the server, which starts when everything that it
needs has arrived there; from then on it depends on no other process. So updates of
different workers never interleave, none overwrites another, and a worker that exits
leaves either a whole update or none on a server. Every commit carries a sequence
number, which counts the worker's commits on that server. A step that is run again
because its worker was lost has the same sequence numbers as before, and a server skips
an update whose number it has applied already. The number is sent with the update
rather than counted on arrival, so late messages of a lost worker do no harm.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training.commit_state import NUM_BINS
from replicator.collectives import buckets
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from replicator.async_training.commit_state import CommitState

_STATEFUL_CALLS = ("If", "While", "StatefulPartitionedCall")


@dataclasses.dataclass(kw_only=True)
class CommitTrace:
    """What the trace of a step knows of its commits."""

    commit_states: Sequence[CommitState]  # One per server.
    # By server, the clock as the step read it before its variables.
    clocks: Sequence[tf.Tensor]
    sequence_numbers: Any  # By server, the worker's last one before this step; int64.
    num_commits: list[int]  # By server, commits of one step.
    shared: list[Any]  # Variables that commits update; they need no copy per worker.


_CURRENT = threading.local()


@contextmanager
def tracing(trace: CommitTrace) -> Iterator[None]:
    """Makes the current trace available to optimizers."""
    before = getattr(_CURRENT, "trace", None)
    _CURRENT.trace = trace
    try:
        yield
    finally:
        _CURRENT.trace = before


def current() -> CommitTrace:
    """The step that is being traced in this thread."""
    trace: CommitTrace | None = getattr(_CURRENT, "trace", None)
    if trace is None:
        raise RuntimeError("an update was traced outside a step")
    return trace


def commit(
    trace: CommitTrace,
    server: int,
    needed: Sequence[tf.Tensor],
    update: Callable[[list[tf.Tensor]], None],
) -> None:
    """Emits the commit of one server."""
    commit_state = trace.commit_states[server]
    trace.num_commits[server] += 1
    sequence_number = trace.sequence_numbers[server] + trace.num_commits[server]
    with tf.device(commit_state.device):
        clock = tf.identity(trace.clocks[server])
        # As two floats, so that it is sent in the same message as small gradients.
        unpack = send(
            [tf.bitcast(sequence_number, tf.float32), *needed], commit_state.device
        )
        # One op for all: the lock is requested only when everything is here. A worker
        # that is killed while it sends holds no lock then, and others never wait for
        # the network of one that holds it.
        arrived = tf.raw_ops.IdentityN(input=[clock, *unpack.messages])
        with tf.control_dependencies([arrived[0].op]):
            lock = tf.raw_ops.MutexLock(mutex=commit_state.mutex)

        with tf.control_dependencies([lock]):
            done = _emit_effects(lambda: _once(commit_state, unpack, arrived, update))
        with tf.control_dependencies(done):
            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    # TensorFlow would make it wait for the releases before it, on other servers: two
    # workers, each with the lock that the other one needs first, would wait forever.
    _tf_compat.run_independently(release)


def _once(
    commit_state: CommitState,
    unpack: Parcel,
    arrived: Sequence[tf.Tensor],
    update: Callable[[list[tf.Tensor]], None],
) -> None:
    """Emits the update for a sequence number that was not used before."""
    clock, *messages = arrived
    bits, *values = unpack(messages)
    sequence_number = tf.bitcast(bits, tf.int64)

    def apply() -> tf.Tensor:
        update(values)
        _count(commit_state, clock)
        tf.raw_ops.AssignVariableOp(
            resource=_tf_compat.handle(commit_state.sequence_numbers[0]),
            value=sequence_number,
        )
        return tf.constant(1)

    # In one branch and under the lock: who sees the number finds the whole update. Used
    # numbers come from steps that are run again, and from late messages of a worker
    # that was lost and has been replaced.
    tf.cond(
        sequence_number > _read(commit_state.sequence_numbers[0]),
        apply,
        lambda: tf.constant(0),
    )


def _count(commit_state: CommitState, clock_at_read: tf.Tensor) -> None:
    staleness = _read(commit_state.clock) - clock_at_read
    place = tf.minimum(staleness, NUM_BINS - 1)
    tf.raw_ops.ResourceScatterAdd(
        resource=_tf_compat.handle(commit_state.update_counts),
        indices=place,
        updates=tf.ones([], tf.int64),
    )
    tf.raw_ops.AssignAddVariableOp(
        resource=_tf_compat.handle(commit_state.clock), value=tf.ones([], tf.int64)
    )


def _read(variable: Any) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(
        resource=_tf_compat.handle(variable), dtype=variable.dtype
    )


def _emit_effects(emit: Callable[[], None]) -> list[Any]:
    """Runs ``emit`` and returns the operations that it added and that do something."""
    graph = _tf_compat.current_graph()
    before = len(graph.get_operations())
    emit()
    return [
        op
        for op in graph.get_operations()[before:]
        if op.type in _STATEFUL_CALLS
        or any(tensor.dtype == tf.resource for tensor in op.inputs)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parcel:
    """Tensors on their way to a server in few messages."""

    messages: tuple[tf.Tensor, ...]  # One tensor per transfer.
    # For each message the places of its tensors, and whether they are packed.
    plan: tuple[tuple[tuple[int, ...], bool], ...]
    shapes: tuple[tf.TensorShape, ...]  # Static shapes of the tensors.

    def __call__(self, arrived: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Unpacks the messages on the server, in the order in which they were sent."""
        tensors: dict[int, tf.Tensor] = {}
        for message, (places, is_packed) in zip(arrived, self.plan, strict=True):
            if not is_packed:
                tensors[places[0]] = message
                continue
            parts = buckets.unpack(message, [self.shapes[place] for place in places])
            tensors.update(zip(places, parts, strict=True))
        return [tensors[place] for place in range(len(self.shapes))]


def send(tensors: Sequence[tf.Tensor], device: str) -> Parcel:
    """Packs small tensors of one type into one message, on the sender.

    A transfer between processes costs far more than the copy of a few kilobytes.
    """
    filled = buckets.fill(
        [tensor.dtype for tensor in tensors],
        [buckets.num_bytes(tensor.shape, tensor.dtype) for tensor in tensors],
        limit=sys.maxsize,
        alone_from=FUSE_BELOW_BYTES,
    )
    plan = [(places, len(places) > 1) for places in filled]
    messages = []
    for places, is_packed in plan:
        message = tensors[places[0]]
        if is_packed:
            with tf.device(None):
                message = buckets.pack([tensors[place] for place in places])
        with tf.device(device):
            messages.append(tf.identity(message))
    return Parcel(
        messages=tuple(messages),
        plan=tuple(plan),
        shapes=tuple(tensor.shape for tensor in tensors),
    )
