"""Steps: a step function, traced once and built for every worker; the shared variables.

Variables that a step adds to (``assign_add``, ``assign_sub``, scatter) are shared, and
so are those that ``wrap_optimizer`` updates. A variable that a step overwrites
(``assign``: batch-norm statistics, Keras metrics, states of random generators) has a
copy per replica of every worker, on the server of the user's own variable. Between
steps the user's own variable reads as their mean; see ``variables.table``. Dispatches
are concurrent, so both are made coherent before the first and after the last of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.async_training import commit
from replicator.cluster import membership
from replicator.core import context
from replicator.core.step import repeat, traced_once
from replicator.engine import analyze, dataflow, plan
from replicator.engine.assembly import Assembly
from replicator.engine.trace import trace
from replicator.errors import UnsynchronisedUpdateError
from replicator.inputs.iterator import next_batches
from replicator.variables.coherence import Coherence
from replicator.variables.kinds import Kind
from replicator.variables.table import Entry, UsedVariables, VariableTable

if TYPE_CHECKING:
    from replicator.core.devices import Topology
    from replicator.engine.body import Body, Ref


# They add to what is there, on the server and under the variable's lock, so that
# workers share the variable and lose nothing.
_ADDING_OPS = ("AssignAdd", "AssignSub", "ResourceApply", "ResourceSparseApply")
_ADDING_SCATTERS = ("Add", "Sub", "Min", "Max", "Mul", "Div")
_COUNTER = itertools.count()
# Stands for the sequence numbers among a step's captures; every step increments them.
_SEQUENCE_NUMBERS = tf.TensorSpec([], tf.int64)


class WorkerSteps:
    """A step function, built for every worker; keeps its graph, not the function."""

    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        *,
        topologies: Sequence[Topology],
        table: ServerTable,
    ) -> None:
        name, topology = f"server_step_{next(_COUNTER)}", topologies[0]
        self._topology = topology
        commit_states = table.commit_states
        commits = commit.CommitTrace(
            commit_states=commit_states,
            num_commits=[0] * len(commit_states),
            shared=[
                v for state in commit_states for v in (state.clock, state.update_counts)
            ],
        )

        def step(*args: Any) -> Any:
            # Read before everything else, so that staleness is never underestimated.
            commits.clocks = [state.clock.read_value() for state in commit_states]
            commits.sequence_numbers = tf.compat.v1.placeholder(
                tf.int64, [len(commit_states)], "sequence_numbers"
            )
            with context.holding("commits", commits):
                return step_fn(*args)

        step.__qualname__ = getattr(step_fn, "__qualname__", repr(step_fn))
        with context.forbidden_in_steps():  # servers are chosen before the step
            self.traced = trace(
                step,
                specs,
                topology.num_replicas,
                topology.num_logical_devices,
                table.num_replicas,
                shared=[state.mutex for state in commit_states],
            )
        # The placeholder of ``CommitTrace.sequence_numbers``.
        self.sequence_numbers_name = commits.sequence_numbers.op.name
        body = analyze.to_body(self.traced, name, topology)
        results = {m for c in self.traced.collectives for m in c.markers}
        # One lock per server and step, for all replicas: two would wait for another.
        locks = {id(state.mutex) for state in commit_states}
        captures = self.traced.captures.items()
        held = {name for name, outer in captures if id(outer) in locks}
        # What varies between replicas in sync.
        self.invariance = dataflow.find_invariance(
            body,
            self.traced.captures,
            self.traced.variables,
            table,
            results | held | {self.sequence_numbers_name},
        )
        if topology.num_replicas > 1:
            # Not what is made local next, for the other workers: each updates by its
            # own state, as one device would.
            analyze.check_invariance(
                self.traced, body, self.invariance, self.invariance.local_because
            )
        if table.num_replicas > 1:
            self._require_local_kinds(body, table, commits.shared)
        # The optimized graph, without the reads that are taken out of it.
        self.body, self.pulls = commit.take_out(self.traced, body, table)
        self.num_commits = tuple(commits.num_commits)  # by server, of one step
        self.programs = [
            ServerProgram(self, topology, table, worker)
            for worker, topology in enumerate(topologies)
        ]
        # Threads of the coordinator ask too: what waits for a worker runs in a loop.
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, bool], Callable[..., Any]] = {}

    def _require_local_kinds(
        self, body: Body, table: ServerTable, updated: Sequence[Any]
    ) -> None:
        """Gives what the step overwrites a copy per replica; see ``ServerTable``."""
        shared = set(map(id, updated))
        for commit_state in table.commit_states:
            shared |= set(map(id, commit_state.sequence_numbers))
        for handle in _overwritten(body, set(self.traced.variables)):
            variable = self.traced.variables[handle]
            if id(variable) in shared or table.kind(variable) is not Kind.MIRRORED:
                continue
            if table.num_workers == 1 and handle not in self.invariance.local:
                continue  # one worker, whose replicas are in sync
            if variable.trainable:
                raise UnsynchronisedUpdateError(
                    f"trainable variable {variable.name!r} is overwritten (assign) by "
                    f"{table.num_workers} asynchronous workers, so updates would be "
                    "lost; update it through repl.wrap_optimizer(), or with assign_add "
                    "or assign_sub, which are atomic; if it is not a weight (a metric, "
                    "a statistic), create it with trainable=False, because tf.Variable "
                    "is trainable by default"
                )
            table.require(variable, Kind.LOCAL)

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        return any(program.used.is_stale() for program in self.programs)

    def function(
        self, worker: int, source_spec: Any, *, is_loop: bool
    ) -> Callable[..., Any]:
        """What runs steps on a worker: takes source, sequence numbers, and how many."""
        key = worker, is_loop
        with self._lock:
            if key not in self._functions:
                with tf.device(None):
                    program = self.programs[worker]
                    self._functions[key] = program.prepare(source_spec, is_loop=is_loop)
            return self._functions[key]

    def explain(self) -> str:
        """Prints the plan of the collectives in a sync group, and the transfers."""
        num_pulled = sum(len(each.reads) for each in self.pulls)
        notes = [f"\n{note}" for note in (*self.traced.notes, *self.body.notes)]
        return (
            f"reads: {num_pulled} variables in {len(self.pulls)} transfers, others "
            f"one by one; updates per server: {list(self.num_commits)}\n"
            f"{plan.explain(self.programs[0].plans, self._topology)}"
            f"{''.join(notes)}"
        )


def _overwritten(body: Body, handles: set[str]) -> list[str]:
    """Handles of variables to which the graph writes something else than a summand."""
    written = dataflow.EffectTable(body.library).written_variables(body, handles)
    others = (written.get(n.name, ()) for n in body.nodes if not _is_adding(n.op))
    return list(dict.fromkeys(itertools.chain.from_iterable(others)))


def _is_adding(op: str) -> bool:
    if op.startswith(("ResourceScatter", "ResourceScatterNd")):
        return op.endswith(_ADDING_SCATTERS)
    return op.startswith(_ADDING_OPS)


class ServerProgram(Assembly):
    """One step on one worker, which reads variables where the step reads first."""

    def __init__(
        self, step: WorkerSteps, topology: Topology, table: ServerTable, worker: int
    ) -> None:
        self.plans = plan.make_plan(step.traced.collectives, topology)
        entries = {
            name: table.worker_entry(worker, variable)
            for name, variable in step.traced.variables.items()
        }
        self.used = UsedVariables(entries, table)
        self.num_replicas = topology.num_local_replicas
        analysis = analyze.Analysis(
            traced=step.traced,
            body=step.body,
            invariance=step.invariance,
            entries=entries,
            liveness=None,
            plans=self.plans,
            shares=(),
        )
        self._step = step
        self._servers = table.placement.devices
        self._pulled: dict[str, Ref] = {}
        super().__init__(f"server_program_{next(_COUNTER)}", analysis, topology)

    def prepare(self, source_spec: Any, *, is_loop: bool) -> Callable[..., Any]:
        """Builds a function that runs steps; call it in cross-replica context."""
        num_commits = list(self._step.num_commits)

        @traced_once
        def program(source: Any, counts: tf.Tensor) -> list[tf.Tensor]:
            sequence_numbers, num_steps = counts[:-1], tf.cast(counts[-1], tf.int32)

            def one_step(index: tf.Tensor) -> list[tf.Tensor]:
                used = sequence_numbers + tf.cast(index, tf.int64) * num_commits
                captured = [
                    used if c is _SEQUENCE_NUMBERS else c for c in self.captured
                ]
                batch = (
                    [] if source is None else next_batches(source, self.num_replicas)
                )
                return self.call(captured, batch)

            return repeat(one_step, num_steps if is_loop else 1, self.output_specs)

        # Sequence numbers and number of steps in one tensor: one input less to send.
        counts = tf.TensorSpec([len(num_commits) + 1], tf.int64)
        with _tf_dispatch.graph_optimizer_off():
            concrete = program.get_concrete_function(source_spec, counts)

        def run(source: Any, sequence_numbers: Sequence[int], num_steps: int) -> Any:
            with tf.device(membership.CLIENT_DEVICE):
                counts = tf.constant([*sequence_numbers, num_steps], tf.int64)
            with _tf_dispatch.graph_optimizer_off():
                return concrete(source, counts)

        return run

    def _resolve(self, replica: int, placeholder: str) -> Ref | str:
        if placeholder not in self._pulled:
            for each in self._step.pulls:
                if any(placeholder in names for _, names, _ in each.reads):
                    self._pull(each)
        if placeholder in self._pulled:
            return self._pulled[placeholder]
        if placeholder == self._step.sequence_numbers_name:
            return self._argument((-1, placeholder), _SEQUENCE_NUMBERS)
        return super()._resolve(replica, placeholder)

    def _pull(self, each: commit.Pull) -> None:
        nodes, values = commit.emit(
            each,
            server_device=self._servers[each.server],
            worker_device=self._topology.replica_devices[0],
            handle=lambda name: str(super(ServerProgram, self)._resolve(0, name)),
            clock=self.copies.name(0, each.clock),
        )
        self._emit.nodes.extend(nodes)
        self._pulled.update(values)


class ServerTable(VariableTable):
    """The variables of all workers."""

    def __init__(
        self,
        topology: Topology,
        num_workers: int,
        placement: Placement,
        commit_states: Sequence[commit.CommitState],
    ) -> None:
        super().__init__(topology)
        self.num_replicas = topology.num_replicas  # of the whole cluster
        self.num_workers = num_workers
        self.placement = placement
        self.commit_states = commit_states  # by server
        self.is_published = True  # the user's variables hold what the copies hold
        self._coherent: list[Entry] = []
        self._functions: dict[str, Any] = {}

    def refresh(self) -> None:
        """Resets copies of variables that were changed outside, while nothing runs."""
        self.placement.refresh_counters()
        self._run("refresh")

    def publish(self) -> None:
        """Gives the user's variables what the copies of all replicas hold."""
        if not self.is_published:
            self._run("publish")
        self.is_published = True

    def _run(self, name: str) -> None:
        entries = [entry for entry in self.entries() if entry.last_synced is not None]
        if not entries:
            return
        if list(map(id, entries)) != list(map(id, self._coherent)):
            self._coherent = entries
            coherence = Coherence(entries, self._topology, self.resets)
            self._functions = {
                "refresh": traced_once(coherence.refresh),
                "publish": traced_once(coherence.publish),
            }
        self._functions[name]()
        _tf_compat.wait_for_remote_ops()

    def is_current(self, entry: Entry) -> bool:
        """True: what is on a server stays there."""
        del entry
        return True

    def worker_entry(self, worker: int, variable: Any) -> Entry:
        """The entry of a variable, with the copies of one worker's replicas."""
        kind, share = self.kind(variable), self.num_replicas // self.num_workers
        for commit_state in self.commit_states:
            # Each worker has its own in the place of worker 0's.
            if variable is commit_state.sequence_numbers[0]:
                copies = (commit_state.sequence_numbers[worker],) * share
                return Entry(
                    variable=variable, kind=kind, copies=copies, last_synced=None
                )
        entry = self.require(variable, kind)
        copies = entry.copies[worker * share : (worker + 1) * share]
        return dataclasses.replace(entry, copies=copies)

    def _copies(self, variable: Any, kind: Kind) -> tuple[Any, ...]:
        if kind is Kind.MIRRORED:
            return (variable,) * self.num_replicas
        copies = []
        for value in self._initial_values(variable, kind):
            with tf.device(variable.device):
                copies.append(
                    context.own_variable(
                        value, dtype=variable.dtype, shape=variable.shape
                    )
                )
        return tuple(copies)


SCALAR_BYTES = 8
# An attribute of an optimizer's counter: those of the other servers, by device.
_OTHERS = "_replicator_counters"


class Placement:
    """Deals variables to parameter servers; each goes to the least loaded one."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)  # of the servers
        self.num_bytes = [0] * len(devices)  # of the variables on each
        # Of updates, of all optimizers: those that are counted on several servers.
        self._counters: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )

    def scope(self) -> Any:
        """Puts the variables that are made inside on servers."""
        return tf.variable_creator_scope(self._create)

    def on(self, device: str) -> context.Scope:
        """Puts the variables that are made inside on one server."""
        return context.holding("server", device)

    def server_of(self, variable: Any) -> int | None:
        """Index of the server that holds a variable; None if it is elsewhere."""
        device = variable.device
        return self.devices.index(device) if device in self.devices else None

    def counter_on(self, server: int, counter: Any) -> Any:
        """What a server counts in, under its lock, for the counter of an optimizer."""
        # Servers apply the updates of several workers in different orders, so an update
        # that depends on its number takes the one of its own server.
        device = self.devices[server]
        if counter.device == device:
            return counter
        self._counters[id(counter)] = counter
        others = vars(counter).setdefault(_OTHERS, {})
        if device not in others:
            with tf.init_scope(), context.allowed(), tf.device(device):
                others[device] = context.own_variable(tf.identity(counter))
        return others[device]

    def refresh_counters(self) -> None:
        """Gives all servers what the user has written or restored; nothing may run."""
        counters = list(self._counters.values())
        for counter in counters:
            for other in vars(counter)[_OTHERS].values():
                other.assign(counter.read_value(), read_value=False)
        if counters:
            _tf_compat.wait_for_remote_ops()

    def _create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        value = kwargs.get("initial_value")
        value = tf.convert_to_tensor(
            value() if callable(value) else value, dtype=kwargs.get("dtype")
        )
        kwargs["initial_value"] = value
        size = max(int(value.shape.num_elements()) * value.dtype.size, SCALAR_BYTES)
        device = context.held("server")
        if device is None:
            # Scalars (counters, learning rates) keep together: updates need them all.
            is_scalar = value.shape.rank == 0
            least = self.num_bytes.index(min(self.num_bytes))
            device = self.devices[0 if is_scalar else least]
        self.num_bytes[self.devices.index(device)] += size
        # A device scope of the user's names devices of this process, or of a replica.
        with tf.device(None), tf.device(device):
            return next_creator(**kwargs)
