"""Steps: a step function, built for every worker, and the assignments of each."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training import commit
from replicator.async_training.dispatch import Assignment, ServerProgram
from replicator.async_training.inputs import WorkerPipelines, skip_steps
from replicator.core import context
from replicator.engine.analysis import analyze, plan
from replicator.engine.analysis.analyze import to_body
from replicator.engine.graph import dataflow
from replicator.engine.graph.trace import trace
from replicator.errors import UnsynchronisedUpdateError
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.async_training.commit import CommitState
    from replicator.async_training.table import Placement, ServerTable
    from replicator.core.topology import Topology
    from replicator.engine.graph.body import Body
    from replicator.engine.graph.trace import TracedStep


# They add to what is there, on the server and under the variable's lock, so that
# workers share the variable and lose nothing.
_ADDING_OPS = ("AssignAdd", "AssignSub", "ResourceApply", "ResourceSparseApply")
_ADDING_SCATTERS = ("Add", "Sub", "Min", "Max", "Mul", "Div")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerStep:
    """A traced step."""

    traced: TracedStep  # The graph as traced.
    body: Body  # The optimized graph, without the reads that are pulled.
    invariance: dataflow.Invariance  # What varies between replicas in sync.
    pulls: tuple[commit.Pull, ...]  # The reads that were taken out of the body.
    num_commits: tuple[int, ...]  # By server, commits of one step.
    sequence_numbers_name: str  # The placeholder of ``CommitTrace.sequence_numbers``.


def trace_step(
    step_fn: Callable[..., Any],
    specs: Sequence[Any],
    *,
    name: str,
    topology: Topology,
    table: ServerTable,
    commit_states: Sequence[CommitState],
) -> ServerStep:
    """Traces a step function for the workers of a job."""
    commits = commit.CommitTrace(
        commit_states=commit_states,
        clocks=(),
        sequence_numbers=None,
        num_commits=[0] * len(commit_states),
        shared=[v for commit_state in commit_states for v in commit_state.shared()],
    )

    def step(*args: Any) -> Any:
        # Read before everything else, so that staleness is never underestimated.
        commits.clocks = [
            commit_state.clock.read_value() for commit_state in commit_states
        ]
        commits.sequence_numbers = tf.compat.v1.placeholder(
            tf.int64, [len(commit_states)], "sequence_numbers"
        )
        with commit.tracing(commits):
            return step_fn(*args)

    step.__qualname__ = getattr(step_fn, "__qualname__", repr(step_fn))
    with context.forbidden_in_steps():  # servers are chosen before the step
        traced = trace(
            step,
            specs,
            topology.num_replicas,
            topology.num_logical_devices,
            table.num_replicas,
            shared=[commit_state.mutex for commit_state in commit_states],
        )
    sequence_numbers_name = commits.sequence_numbers.op.name
    # Without the tensors, which would keep the graph.
    commits.clocks, commits.sequence_numbers = (), None
    body = to_body(traced, name, topology)
    analysis = _analyze(traced, body, table, commit_states, sequence_numbers_name)
    if topology.num_replicas > 1:
        # Not what `_require_local_kinds` makes local for the other workers: each
        # updates by its own state, as one device would.
        analyze.check_invariance(traced, body, analysis, analysis.local_because)
    _require_local_kinds(traced, body, analysis, table, commits)
    clocks = {
        id(commit_state.clock): server
        for server, commit_state in enumerate(commit_states)
    }
    body, pulls = commit.take_out(traced, body, table, clocks)
    return ServerStep(
        traced=traced,
        body=body,
        invariance=analysis,
        pulls=pulls,
        num_commits=tuple(commits.num_commits),
        sequence_numbers_name=sequence_numbers_name,
    )


def _analyze(
    traced: TracedStep,
    body: Body,
    table: ServerTable,
    commit_states: Sequence[CommitState],
    sequence_numbers_name: str,
) -> dataflow.Invariance:
    results = {m for c in traced.collectives for m in c.markers}
    # One lock per server and step, however many replicas: two would wait for another.
    locks = {id(commit_state.mutex) for commit_state in commit_states}
    held = {name for name, outer in traced.captures.items() if id(outer) in locks}
    return analyze.find_invariance(
        traced, body, table, results | held | {sequence_numbers_name}
    )


def _require_local_kinds(
    traced: TracedStep,
    body: Body,
    analysis: dataflow.Invariance,
    table: ServerTable,
    commits: commit.CommitTrace,
) -> None:
    """Gives what a step overwrites a copy per replica; see ``async_training.table``."""
    if table.num_replicas == 1:
        return
    shared = {id(variable) for variable in commits.shared}
    for commit_state in commits.commit_states:
        shared |= {
            id(sequence_number) for sequence_number in commit_state.sequence_numbers
        }
    for handle in overwritten(body, set(traced.variables)):
        variable = traced.variables[handle]
        if id(variable) in shared or table.kind(variable) is not Kind.MIRRORED:
            continue
        if table.num_workers == 1 and handle not in analysis.local:
            continue  # one worker, whose replicas are in sync
        if variable.trainable:
            raise UnsynchronisedUpdateError(
                f"trainable variable {variable.name!r} is overwritten (assign) by "
                f"{table.num_workers} asynchronous workers, so updates would be lost; "
                "update it through repl.wrap_optimizer(), or with assign_add or "
                "assign_sub, which are atomic; if it is not a weight (a metric, a "
                "statistic), create it with trainable=False, because tf.Variable is "
                "trainable by default"
            )
        table.require(variable, Kind.LOCAL)


def overwritten(body: Body, handles: set[str]) -> list[str]:
    """Handles of variables to which the graph writes something else than a summand."""
    written = dataflow.written_variables(body, handles)
    others = (written.get(n.name, ()) for n in body.nodes if not _is_adding(n.op))
    return list(dict.fromkeys(itertools.chain.from_iterable(others)))


def _is_adding(op: str) -> bool:
    if op.startswith(("ResourceScatter", "ResourceScatterNd")):
        return op.endswith(_ADDING_SCATTERS)
    return op.startswith(_ADDING_OPS)


_COUNTER = itertools.count()


class WorkerSteps:
    """A step function, built for every worker; keeps its graph, not the function."""

    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        *,
        topologies: Sequence[Topology],
        table: ServerTable,
        commit_states: Sequence[CommitState],
        placement: Placement,
    ) -> None:
        self._topologies = topologies
        step = trace_step(
            step_fn,
            specs,
            name=f"server_step_{next(_COUNTER)}",
            topology=topologies[0],
            table=table,
            commit_states=commit_states,
        )
        self.programs = [
            ServerProgram(step, topology, table.view(worker, commit_states), placement)
            for worker, topology in enumerate(topologies)
        ]
        # Threads of the coordinator ask too: what waits for a worker runs in a loop.
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, bool], Any] = {}

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        return any(program.is_stale() for program in self.programs)

    def assign(
        self,
        worker: int,
        num_steps: int,
        *,
        source: Any,
        spec: Any,
        keeps_results: bool,
    ) -> Assignment:
        """Makes what one worker is given."""
        self._function(worker, spec, is_loop=num_steps > 1)

        def run(iterators: Any, sequence_numbers: Any, num_left: int) -> Any:
            function = self._function(worker, spec, is_loop=num_left > 1)
            is_read = isinstance(source, WorkerPipelines)
            return function(
                iterators if is_read else source, sequence_numbers, num_left
            )

        program = self.programs[worker]
        return Assignment(
            worker=worker,
            num_steps=num_steps,
            num_commits=program.step.num_commits,
            run=run,
            skip=lambda iterators, num_done: skip_steps(
                iterators, self._topologies[worker].num_replicas, num_done
            ),
            program=program,
            source=source,
            keeps_results=keeps_results,
        )

    def explain(self) -> str:
        """Prints the plan of the collectives in a sync group, and the transfers."""
        step = self.programs[0].step
        num_pulled = sum(len(each.reads) for each in step.pulls)
        notes = [f"\n{note}" for note in (*step.traced.notes, *step.body.notes)]
        return (
            f"reads: {num_pulled} variables in {len(step.pulls)} transfers, others "
            f"one by one; updates per server: {list(step.num_commits)}\n"
            f"{plan.explain(self.programs[0].plans, self._topologies[0])}"
            f"{''.join(notes)}"
        )

    def _function(self, worker: int, spec: Any, *, is_loop: bool) -> Any:
        key = worker, is_loop
        with self._lock:
            if key not in self._functions:
                with tf.device(None):
                    program = self.programs[worker]
                    self._functions[key] = program.prepare(spec, is_loop=is_loop)
            return self._functions[key]
