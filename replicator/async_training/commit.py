"""Commit: a worker's atomic update of the variables on one server, and who asks for it.

The update runs in a locked section of the server, which starts when everything that it
needs has arrived there. So updates of different workers never interleave, none
overwrites another, and a worker that exits leaves either a whole update or none on a
server. Every commit carries a sequence number, which counts the worker's commits on
that server. A step that is run again because its worker was lost has the same numbers,
and a server skips an update whose number it has applied already. The number is sent
with the update, so late messages of a lost worker do no harm.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import transport
from replicator.core import context
from replicator.engine.dataflow import READ_OPS
from replicator.engine.emitter import Emitter, NodeOps
from replicator.engine.plan import FUSE_BELOW_BYTES
from replicator.errors import DeviceError, OptimizerOptionError
from replicator.optimizer import stages
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from replicator.async_training.steps import Placement, ServerTable
    from replicator.engine.body import Body, Ref
    from replicator.engine.trace import TracedStep
    from replicator.optimizer.options import OptimizerOptions


# The last bin counts everything that is at least as stale.
NUM_BINS = 1024


class CommitState:
    """The lock of one parameter server, and the counts that change only under it."""

    def __init__(self, device: str, num_workers: int, name: str) -> None:
        self.device = device
        with tf.init_scope(), context.allowed(), tf.device(None), tf.device(device):
            self.mutex = tf.raw_ops.MutexV2(shared_name=name)
            self.clock = _counter()  # updates that were applied here, of all workers
            # By staleness.
            self.update_counts = tf.Variable(
                tf.zeros([NUM_BINS], tf.int64), trainable=False
            )
            # By worker, the number of its last update here; numbers have no gaps.
            self.sequence_numbers = [_counter() for _ in range(num_workers)]


def _counter() -> Any:
    return tf.Variable(tf.zeros([], tf.int64), trainable=False)


_STATEFUL_CALLS = ("If", "While", "StatefulPartitionedCall")


@dataclasses.dataclass(kw_only=True)
class CommitTrace:
    """What the trace of a step knows of its commits."""

    commit_states: Sequence[CommitState]  # One per server.
    num_commits: list[int]  # By server, commits of one step.
    shared: list[Any]  # Variables that commits update; they need no copy per worker.
    # By server, the clock as the step read it before its variables.
    clocks: Sequence[tf.Tensor] = ()
    # By server, the worker's last one before this step; int64.
    sequence_numbers: Any = None


def current() -> CommitTrace:
    """The step that is being traced in this thread."""
    trace: CommitTrace | None = context.held("commits")
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
        messages, unpack = send(
            [tf.bitcast(sequence_number, tf.float32), *needed], commit_state.device
        )
        # One op for all: the lock is requested only when everything is here. A worker
        # that is killed while it sends holds no lock then, and others never wait for
        # the network of one that holds it.
        arrived = tf.raw_ops.IdentityN(input=[clock, *messages])
        with tf.control_dependencies([arrived[0].op]):
            lock = tf.raw_ops.MutexLock(mutex=commit_state.mutex)

        with tf.control_dependencies([lock]):
            done = _emit_effects(
                lambda: _once(commit_state, arrived[0], unpack(arrived[1:]), update)
            )
        with tf.control_dependencies(done):
            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    # TensorFlow would make it wait for the releases before it, on other servers: two
    # workers, each with the lock that the other one needs first, would wait forever.
    _tf_compat.run_independently(release)


def _once(
    commit_state: CommitState,
    clock: tf.Tensor,
    arrived: Sequence[tf.Tensor],
    update: Callable[[list[tf.Tensor]], None],
) -> None:
    """Emits the update for a sequence number that was not used before."""
    bits, *values = arrived
    sequence_number = tf.bitcast(bits, tf.int64)

    def apply() -> tf.Tensor:
        update(values)
        _count(commit_state, clock)
        tf.raw_ops.AssignVariableOp(
            resource=_tf_compat.handle(commit_state.sequence_numbers[0]),
            value=sequence_number,
        )
        return tf.constant(1)

    # In one branch and under the lock: who sees the number finds the whole update.
    tf.cond(
        sequence_number > _read(commit_state.sequence_numbers[0]),
        apply,
        lambda: tf.constant(0),
    )


def _count(commit_state: CommitState, clock_at_read: tf.Tensor) -> None:
    staleness = _read(commit_state.clock) - clock_at_read
    index = tf.minimum(staleness, NUM_BINS - 1)
    tf.raw_ops.ResourceScatterAdd(
        resource=_tf_compat.handle(commit_state.update_counts),
        indices=index,
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
    """The operations that ``emit`` adds and that do something."""
    graph = _tf_compat.current_graph()
    before = len(graph.get_operations())
    emit()
    return [
        op
        for op in graph.get_operations()[before:]
        if op.type in _STATEFUL_CALLS
        or any(tensor.dtype == tf.resource for tensor in op.inputs)
    ]


def send(
    tensors: Sequence[tf.Tensor], device: str
) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """Packs small tensors of one type into one message; returns what unpacks them."""
    filled = transport.fill(
        [tensor.dtype for tensor in tensors],
        [transport.num_bytes(tensor.shape, tensor.dtype) for tensor in tensors],
        limit=sys.maxsize,
        alone_from=FUSE_BELOW_BYTES,
    )
    messages = []
    for places in filled:
        message = tensors[places[0]]
        if len(places) > 1:
            with tf.device(None):
                message = transport.pack([tensors[index] for index in places])
        with tf.device(device):
            messages.append(tf.identity(message))
    shapes = [tensor.shape for tensor in tensors]

    def unpack(arrived: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results: dict[int, tf.Tensor] = {}
        for message, places in zip(arrived, filled, strict=True):
            parts = [message]
            if len(places) > 1:
                parts = transport.unpack(message, [shapes[index] for index in places])
            results.update(zip(places, parts, strict=True))
        return [results[index] for index in range(len(shapes))]

    return messages, unpack


# Gradients are first averaged over the replicas in sync, as in all backends. The update
# then runs on the servers: by TensorFlow's atomic kernels if there is one with the
# result of the Keras update, otherwise by the Keras optimizer in the locked section.


class ServerOptimizer(ReplicatedOptimizer):
    """A Keras optimizer whose updates are never lost."""

    def __init__(
        self, optimizer: Any, *, options: OptimizerOptions, placement: Placement
    ) -> None:
        self._placement = placement
        super().__init__(optimizer, options=options)

    def build(self, variables: Iterable[Any]) -> None:
        """Makes the optimizer's state, each slot on the server of its variable."""
        placement = self._placement

        def beside(variable: Any) -> context.Scope | None:
            is_there = variable.device in placement.devices
            return placement.on(variable.device) if is_there else None

        # A kernel needs both there.
        with placement.scope(), stages.placed(self.wrapped, beside):
            super().build(variables)

    def _find_fused(
        self, grads: list[Any], variables: list[Any]
    ) -> stages.FusedUpdate | None:
        # On one server Keras' own sparse update can run in the lock, and is the same
        # number as on one device; the kernel adds in another order.
        servers = {self._server_of(_tf_compat.unwrap(v)) for v in variables}
        return stages.find_fused(
            self.wrapped, grads, variables, takes_sparse=len(servers) > 1
        )

    def _begin(self, variables: list[Any]) -> tuple[CommitTrace, list[int]]:
        """Notes what commits will change; returns the server of each variable."""
        trace = current()
        inner = [_tf_compat.unwrap(variable) for variable in variables]
        trace.shared += [*inner, *map(_tf_compat.unwrap, self.wrapped.variables)]
        return trace, [self._server_of(variable) for variable in inner]

    def _apply_fused(
        self,
        fused_update: stages.FusedUpdate,
        grads: list[Any],
        variables: list[Any],
        num_summed: int,
    ) -> None:
        """Commits by kernels, on each server for the variables that it holds."""
        trace, servers = self._begin(variables)
        counters = self._counters(fused_update)
        trace.shared += counters.values()
        is_scheduled = _tf_compat.schedule_of(self.wrapped) is not None
        scalar_server = self._server_of_scalars()
        involved = sorted({*servers, *counters})
        # Before any commit, for which it would wait.
        rates = (
            []
            if is_scheduled or involved == [scalar_server]
            else [tf.convert_to_tensor(self.wrapped.learning_rate)]
        )
        for server in involved:
            mine = [i for i, other in enumerate(servers) if other == server]
            counter = counters.get(server)
            sent = [] if server == scalar_server else rates
            parts, rebuild = _flatten([grads[i] for i in mine])

            def update(
                arrived: list[tf.Tensor],
                mine: list[int] = mine,
                counter: Any = counter,
                num_sent: int = len(sent),
                rebuild: Any = rebuild,
            ) -> None:
                rate = arrived[0] if num_sent else None
                prepared = fused_update.prepare(num_summed, counter=counter, rate=rate)
                own = rebuild(arrived[num_sent:])
                fused_update.update(own, [variables[i] for i in mine], prepared)
                if counter is not None:
                    fused_update.count(counter)

            commit(trace, server, [*sent, *parts], update)

    def _counters(self, fused_update: stages.FusedUpdate) -> dict[int, Any]:
        """By server that counts updates, the variable in which it does."""
        counter = _tf_compat.unwrap(self.wrapped.iterations)
        counting = {self._server_of(counter)}
        # Where updates depend on their count, all that hold weights count their own.
        if fused_update.uses_count:
            weights = _tf_compat.optimized_variables(self.wrapped) or ()
            counting |= set(map(self._server_of, map(_tf_compat.unwrap, weights)))
        return {
            server: self._placement.counter_on(server, counter) for server in counting
        }

    def _apply_keras(self, averaged: list[Any], variables: list[Any]) -> None:
        """Commits by the Keras optimizer itself, on the one server that holds all."""
        trace, owners = self._begin(variables)
        others = map(_tf_compat.unwrap, self.wrapped.variables)
        servers = {*owners, *map(self._server_of, others)}
        if len(servers) > 1:
            raise OptimizerOptionError(
                f"{type(self.wrapped).__name__} in this configuration has no atomic "
                "update kernel, so its whole update must run on one parameter server, "
                f"but its variables are on {len(servers)}: use keras.optimizers.SGD "
                "(with or without momentum) or Adam without clipping, decay or "
                "averaging, or a cluster with one parameter server"
            )
        parts, rebuild = _flatten(averaged)
        commit(
            trace,
            servers.pop(),
            parts,
            lambda arrived: self.wrapped.apply(rebuild(arrived), variables),
        )

    def _server_of_scalars(self) -> int | None:
        """The server that has all scalars of the optimizer, or None."""
        scalars = [
            _tf_compat.unwrap(variable)
            for variable in self.wrapped.variables
            if len(variable.shape) == 0  # a TensorShape of no dimensions is true
        ]
        servers = {self._server_of(variable) for variable in scalars}
        return servers.pop() if len(servers) == 1 else None

    def _server_of(self, variable: Any) -> int:
        server: int | None = self._placement.server_of(variable)
        if server is None:
            raise DeviceError(
                f"variable {variable.name!r} is on {variable.device!r}, which is not a "
                "parameter server; create models and optimizers inside `with "
                "repl.context():`"
            )
        return server


def _flatten(grads: Sequence[Any]) -> tuple[list[tf.Tensor], Any]:
    """Flattens gradients into dense tensors; returns them and the inverse."""
    parts: list[tf.Tensor] = []
    for grad in grads:
        is_sparse = isinstance(grad, tf.IndexedSlices)
        parts += [grad.values, grad.indices] if is_sparse else [grad]

    def rebuild(tensors: Sequence[tf.Tensor]) -> list[Any]:
        rest = iter(tensors)
        return [
            tf.IndexedSlices(next(rest), next(rest), _shape_of(grad))
            if isinstance(grad, tf.IndexedSlices)
            else next(rest)
            for grad in grads
        ]

    return parts, rebuild


def _shape_of(grad: tf.IndexedSlices) -> Any:
    """The dense shape, as a constant if it is known, which need not be sent."""
    static = None if grad.dense_shape is None else tf.get_static_value(grad.dense_shape)
    return None if static is None else tf.constant(static)


# Otherwise every variable that a step reads would be a separate transfer. The reads
# that come before any write are removed from the traced graph; each worker's program
# packs all small variables on their server, and unpacks them on the worker.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """Variables of one type that are sent together."""

    server: int  # Where they are.
    clock: str  # The node that reads the server's clock before them.
    dtype: tf.DType
    # By variable: the placeholder of its handle, the names of the reads that it
    # replaces, and its shape.
    reads: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]


def take_out(
    traced: TracedStep, body: Body, table: ServerTable
) -> tuple[Body, tuple[Pull, ...]]:
    """Takes the first reads of small shared variables out of a step."""
    clocks = {id(state.clock): i for i, state in enumerate(table.commit_states)}
    clock_of: dict[int, str] = {}  # by server, the node that reads its clock
    read_at: dict[str, tuple[int, str]] = {}  # server and handle of a first read
    for node in body.nodes:
        # A read that no write comes before has no control edges.
        handle = node.inputs[0].node if node.inputs else None
        if node.op not in READ_OPS or node.controls or handle not in traced.variables:
            continue
        variable = traced.variables[handle]
        clock_server = clocks.get(id(variable))
        if clock_server is not None and clock_server not in clock_of:
            clock_of[clock_server] = node.name
            continue
        server = table.placement.server_of(variable)
        if server is not None:
            read_at[node.name] = server, handle
    waits = {name: at for name, at in read_at.items() if at[0] in clock_of}
    is_read = {node.name for node in body.nodes if node.op == "ReadVariableOp"}
    groups: dict[tuple[int, tf.DType], dict[str, list[str]]] = {}
    for name, (server, handle) in waits.items():
        variable = traced.variables[handle]
        size = transport.num_bytes(variable.shape, variable.dtype)
        is_small = 0 < size < FUSE_BELOW_BYTES
        if name in is_read and is_small and table.kind(variable) is Kind.MIRRORED:
            reads = groups.setdefault((server, variable.dtype), {})
            reads.setdefault(handle, []).append(name)
    pulls = tuple(
        Pull(
            server=server,
            clock=clock_of[server],
            dtype=dtype,
            reads=tuple(
                (handle, tuple(names), tuple(traced.variables[handle].shape))
                for handle, names in reads.items()
            ),
        )
        for (server, dtype), reads in groups.items()
        if len(reads) > 1
    )
    clocks_of = {name: clock_of[server] for name, (server, _) in waits.items()}
    return _rewrite(body, clocks_of, pulls), pulls


def _rewrite(body: Body, clock_of: Mapping[str, str], pulls: Sequence[Pull]) -> Body:
    """Turns pulled reads into inputs, and lets the others wait for their clock."""
    pulled = {n for p in pulls for _, names, _ in p.reads for n in names}
    nodes = tuple(
        dataclasses.replace(node, controls=(clock_of[node.name],))
        if node.name in clock_of
        else node
        for node in body.nodes
        if node.name not in pulled
    )
    # The clock's reads have no inputs but handles, so they may come first.
    early = set(clock_of.values())
    return dataclasses.replace(
        body,
        nodes=tuple(sorted(nodes, key=lambda node: node.name not in early)),
        placeholders=body.placeholders | frozenset(pulled),
    )


def emit(
    pull: Pull,
    *,
    server_device: str,
    worker_device: str,
    handle: Callable[[str], str],
    clock: str,
) -> tuple[list[Any], dict[str, Ref]]:
    """Makes the nodes of one pull."""
    name = f"pull_{pull.server}_{pull.dtype.name}"
    emitter = Emitter()
    reads = [
        emitter.add(
            f"{name}/read_{index}",
            "ReadVariableOp",
            [handle(placeholder)],
            server_device,
            [clock],
            dtype=pull.dtype,
        )
        for index, (placeholder, _, _) in enumerate(pull.reads)
    ]
    shapes = [shape for _, _, shape in pull.reads]
    on_server = NodeOps(emitter, f"{name}/packed", pull.dtype, server_device)
    on_worker = NodeOps(emitter, name, pull.dtype, worker_device)
    values = on_worker.unpack(on_server.pack(reads, shapes), shapes)
    replaced = {
        read: value
        for (_, names, _), value in zip(pull.reads, values, strict=True)
        for read in names
    }
    return emitter.nodes, replaced


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """What was measured since the replicator was made, over all applied updates.

    The staleness of an update on a parameter server is the number of updates that the
    server applied after the step had read the server's clock, which it does before it
    reads any variable there, and before its own update. So it is an upper bound of the
    number of updates that the values which the step read did not contain, and 0 with
    one worker. A step with updates on several servers counts once on each.
    """

    num_updates: int  # Updates that were applied.
    histogram: dict[int, int]  # Number of updates by staleness: staleness -> updates.
    mean: float  # Mean staleness; 0.0 before the first update.
    max: int  # Largest staleness, up to ``limit``.
    limit: int  # Larger values are counted as this.

    def __str__(self) -> str:
        counts = ", ".join(f"{s}: {n}" for s, n in sorted(self.histogram.items()))
        return (
            f"{self.num_updates} updates, staleness mean {self.mean:.2f}, max "
            f"{self.max}; updates by staleness: {counts or 'none'}"
        )


def summarize(counts_by_server: list[list[int]]) -> Staleness:
    """Adds the update counts of all servers."""
    totals = [sum(counts) for counts in zip(*counts_by_server, strict=True)]
    num_updates = sum(totals)
    histogram = {value: count for value, count in enumerate(totals) if count}
    weighted = sum(value * count for value, count in histogram.items())
    return Staleness(
        num_updates=num_updates,
        histogram=histogram,
        mean=weighted / num_updates if num_updates else 0.0,
        max=max(histogram, default=0),
        limit=len(totals) - 1,
    )
