"""Steps: a step function, built for every worker, and the assignments of each."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training.assignment import Assignment
from replicator.async_training.inputs import WorkerPipelines, skip_steps
from replicator.async_training.program import ServerProgram
from replicator.async_training.step import trace_step
from replicator.engine.analysis import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.async_training.commit_state import CommitState
    from replicator.async_training.placement import Placement
    from replicator.async_training.table import ServerTable
    from replicator.placement.topology import Topology

_COUNTER = itertools.count()


class WorkerSteps:
    """A step function, built for every worker; keeps its graph, not the function.

    Attributes:
      programs: By worker.
    """

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
