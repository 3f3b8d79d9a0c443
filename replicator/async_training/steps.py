"""Steps: a step function, traced once and built for every worker."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator.async_training import commit
from replicator.async_training import connection as connection_lib
from replicator.core import context
from replicator.core.step import repeat, traced_once
from replicator.engine import analyze, dataflow, plan
from replicator.engine.analyze import Analysis, to_body
from replicator.engine.assembly import Assembly
from replicator.engine.trace import trace
from replicator.errors import UnsynchronisedUpdateError
from replicator.inputs.iterator import next_batches
from replicator.variables.kinds import Kind
from replicator.variables.table import UsedVariables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.async_training.table import ServerTable
    from replicator.core.topology import Topology
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
        body = to_body(self.traced, name, topology)
        results = {m for c in self.traced.collectives for m in c.markers}
        # One lock per server and step, for all replicas: two would wait for another.
        locks = {id(state.mutex) for state in commit_states}
        captures = self.traced.captures.items()
        held = {name for name, outer in captures if id(outer) in locks}
        # What varies between replicas in sync.
        self.invariance = analyze.find_invariance(
            self.traced, body, table, results | held | {self.sequence_numbers_name}
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
        """Gives what the step overwrites a copy per replica; see ``table``."""
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
    written = dataflow.written_variables(body, handles)
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
        analysis = Analysis(
            traced=step.traced,
            body=step.body,
            invariance=step.invariance,
            entries=entries,
            liveness=None,
            plans=self.plans,
            shares=(),
        )
        super().__init__(f"server_program_{next(_COUNTER)}", analysis, topology)
        self._step = step
        self._servers = table.placement.devices
        self._pulled: dict[str, Ref] = {}
        self.register()

    def prepare(
        self, source_spec: Any, *, is_loop: bool
    ) -> Callable[[Any, Any, int], Any]:
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
            with tf.device(connection_lib.CLIENT_DEVICE):
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
