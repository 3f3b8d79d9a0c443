"""Dispatch: steps for one worker, through TensorFlow's coordinator, each counted once.

The coordinator runs its work in one thread per worker. When a worker is lost, it waits
until the worker is back, makes its iterators again, and runs the unfinished work again.
This module decides where that work resumes: after the last step whose updates all
servers have, with the same sequence numbers as before, so that a server skips updates
that it has applied already. Assignments that queue up for a worker run in one dispatch,
because a dispatch costs more than a small step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.async_training import commit
from replicator.async_training import connection as connection_lib
from replicator.async_training.inputs import Place, WorkerPipelines
from replicator.cluster import membership
from replicator.core.step import repeat, traced_once
from replicator.engine.analysis import plan
from replicator.engine.analysis.analyze import Analysis
from replicator.engine.run.assembly import Assembly
from replicator.errors import WorkerLostError
from replicator.inputs.iterator import next_batches
from replicator.variables.table import UsedVariables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.async_training.commit import CommitState
    from replicator.async_training.connection import Connection, ServerWatch
    from replicator.async_training.steps import ServerStep
    from replicator.async_training.table import Placement, WorkerTable
    from replicator.core.topology import Topology
    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.engine.graph.body import Ref


# A worker that is lost does at most so many again; by then, a dispatch costs nothing
# against its steps.
MAX_STEPS_TOGETHER = 64


@dataclasses.dataclass(kw_only=True, eq=False)
class Assignment:
    """Steps that one worker was given."""

    worker: int  # Which worker.
    num_steps: int  # How many steps.
    num_commits: tuple[int, ...]  # By server, commits of one step.
    # Takes the iterators of the worker, its last sequence numbers (by server) and how
    # many steps to run.
    run: Callable[[Any, Any, int], Any]
    # Takes the iterators of the worker, and how many steps to read and drop.
    skip: Callable[[Any, int], None]
    program: Any  # What ``run`` runs; assignments of one program can run together.
    source: Any  # Fixed values, the worker's pipelines, or None.
    keeps_results: bool  # Whether anybody will ask for the outputs.
    handle: Any = None  # What the coordinator knows it by.
    results: Sequence[Any] = ()  # Flat outputs of the last step, on the client.
    is_done: bool = False  # Whether all steps were run.
    # What it runs with, in order; those after the first leave it to that one.
    batch: Batch | None = None

    def follows(self, first: Assignment) -> bool:
        """Whether it can run in one dispatch with another one, which comes before."""
        return (
            self.worker == first.worker
            and self.program is first.program
            and self.source is first.source
            and not first.keeps_results
            and not self.keeps_results
            and self.batch is None
            and not self.is_done
        )


@dataclasses.dataclass(kw_only=True, eq=False)
class Batch:
    """Assignments that are run as one dispatch."""

    members: tuple[Assignment, ...]  # In the order in which they were given.
    # By server, those of the worker before the first step.
    first_sequence_numbers: tuple[int, ...]
    num_attempts: int = 0  # How often it was started.
    num_made: int = 0  # How often the iterators were made before the last attempt.
    error: BaseException | None = None  # What its last attempt raised.

    @property
    def first(self) -> Assignment:
        """The one on whose behalf all are run."""
        return self.members[0]

    @property
    def num_steps(self) -> int:
        """Steps of all members."""
        return sum(member.num_steps for member in self.members)

    def sequence_numbers_after(self, num_steps: int) -> tuple[int, ...]:
        """By server, the sequence numbers that are used after so many steps."""
        return tuple(
            sequence_number + num_steps * num_commits
            for sequence_number, num_commits in zip(
                self.first_sequence_numbers, self.first.num_commits, strict=True
            )
        )

    def num_done(self, sequence_numbers: Sequence[int]) -> int:
        """Finds the steps whose updates all servers have, but for the last one.

        The last one is run in any case, for its results.
        """
        # The server that is furthest behind counts: those ahead of it skip what they
        # have applied, but nobody could make up for a step that one of them lacks.
        num_commits = self.first.num_commits
        num_done = self.num_steps - 1 if any(num_commits) else 0
        for sequence_number, first, each in zip(
            sequence_numbers, self.first_sequence_numbers, num_commits, strict=True
        ):
            if each:
                num_done = min(num_done, (sequence_number - first) // each)
        return num_done


def make_batch(
    first: Assignment,
    queued: Sequence[Assignment],
    first_sequence_numbers: tuple[int, ...],
) -> Batch:
    """Joins an assignment with those that queue directly after it."""
    members = [first]
    num_steps = first.num_steps
    for other in queued[queued.index(first) + 1 :]:
        num_steps += other.num_steps
        if num_steps > MAX_STEPS_TOGETHER or not other.follows(first):
            break
        members.append(other)
    batch = Batch(members=tuple(members), first_sequence_numbers=first_sequence_numbers)
    for member in members:
        member.batch = batch
    return batch


# The coordinator starts again what raised these, where the worker is back.
_OF_LOST_WORKERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.UnavailableError,
)
_POLL_SEC = 0.02
_SERVERS_POLL_SEC = 1.0


class Dispatcher:
    """Hands assignments to the workers of one replicator."""

    def __init__(
        self,
        connection: Connection,
        commit_states: Sequence[CommitState],
        recovery_timeout_sec: float,
        client_device: str,
        watch: ServerWatch,
    ) -> None:
        self.num_redone = 0  # assignments started again because a worker was lost
        self._connection = connection
        self._commit_states = commit_states
        self._recovery_timeout_sec = recovery_timeout_sec
        self._client_device = client_device
        self._watch = watch
        self._pending: list[Assignment] = []
        self._lost_worker: WorkerLostError | None = None
        self._waits = [
            connection_lib.FirstWait(recovery_timeout_sec)
            for _ in range(connection.num_workers)
        ]
        # By worker, its sequence numbers by server; None where a step failed half way.
        self._sequence_numbers: list[tuple[int, ...] | None] = [
            (0,) * len(commit_states) for _ in range(connection.num_workers)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was handed out is waited for."""
        return not self._pending

    def submit(self, assignment: Assignment) -> None:
        """Gives steps to a worker; does not wait."""
        self._watch.check()
        if self._lost_worker is not None:
            raise self._lost_worker
        source = assignment.source
        # First, so that the worker's thread finds what it can run together.
        self._pending.append(assignment)
        assignment.handle = _tf_compat.create_on_worker(
            self._connection.coordinator,
            assignment.worker,
            lambda *sources: self._work(assignment, sources[0] if sources else None),
            (source.handle,) if isinstance(source, WorkerPipelines) else (),
        )

    def join(self) -> None:
        """Waits until everything that was handed out is done."""
        failure: BaseException | None = None
        lost_since: dict[int, float] = {}
        for wait in self._waits:
            wait.restart()
        try:
            for assignment in self._pending:
                error = self._wait(assignment, lost_since)
                failure = failure or error
                lost = self._watch.error or self._lost_worker
                if lost is not None:
                    raise lost
        finally:
            self._pending = []
        if failure is not None:
            raise failure

    def _wait(
        self, assignment: Assignment, lost_since: dict[int, float]
    ) -> BaseException | None:
        worker = assignment.worker
        next_look = time.monotonic() + _SERVERS_POLL_SEC
        while True:
            state, error = _tf_compat.remote_state(assignment.handle, _POLL_SEC)
            if state == "ready":
                self._waits[worker].end()
                lost_since.pop(worker, None)
                return error and (self._watch.explain(error) or error)
            if time.monotonic() > next_look:
                if lost_server := self._watch.find_lost():
                    return lost_server
                next_look = time.monotonic() + _SERVERS_POLL_SEC
            if state == "pending":
                if self._hangs(assignment):
                    return self._lost_worker
                continue
            self._waits[worker].restart()
            since = lost_since.setdefault(worker, time.monotonic())
            if assignment.is_done:
                return None
            if time.monotonic() - since > self._recovery_timeout_sec:
                address = self._connection.cluster.addresses["worker"][worker]
                self._lost_worker = WorkerLostError(
                    f"worker {worker} ({address}) was lost and did not come back "
                    f"within {self._recovery_timeout_sec:g} s; restart `python -m "
                    "replicator.server` there, or create the replicator with a larger "
                    "recovery_timeout_sec; then restore the last checkpoint"
                )
                return self._lost_worker
            time.sleep(_POLL_SEC)

    def _hangs(self, assignment: Assignment) -> bool:
        """Whether the first steps of a worker take too long without any progress."""
        worker = assignment.worker
        sec = self._waits[worker].exceeded(
            # Without updates, nothing shows which of the steps it runs.
            1 if any(assignment.num_commits) else assignment.num_steps,
            lambda: self._read_sequence_numbers(worker),
        )
        if sec is None:
            return False
        address = self._connection.cluster.addresses["worker"][worker]
        least = membership.LEAST_THREADS
        self._lost_worker = WorkerLostError(
            f"worker {worker} ({address}) has made no progress in its first steps for "
            f"{sec:g} s; {membership.describe_threads()}; each process of the cluster "
            f"needs {least} threads or more: run `python -m replicator.server` on "
            "workers and servers, which sets them, or call tf.config.threading."
            f"set_inter_op_parallelism_threads({least}) at the start; if a step takes "
            "that long, create the replicator with a larger recovery_timeout_sec"
        )
        return True

    def _work(self, assignment: Assignment, iterators: Any) -> None:
        """Runs on the coordinator's thread for the worker, one at a time."""
        if assignment.is_done:
            return  # with another one, or before the worker was lost
        worker = assignment.worker
        # Unknown from here until all has gone well: a step that fails half way leaves
        # some servers ahead of others, and only they know.
        known, self._sequence_numbers[worker] = self._sequence_numbers[worker], None
        batch = assignment.batch
        if batch is None:
            queued = [a for a in self._pending[:] if a.worker == worker]
            sequence_numbers = known or self._read_sequence_numbers(worker)
            batch = make_batch(assignment, queued, sequence_numbers)
        elif assignment is not batch.first:
            assert batch.error is not None
            raise batch.error
        try:
            self._run(batch, iterators)
        except BaseException as error:
            batch.error = error
            if not isinstance(error, _OF_LOST_WORKERS):
                self._count_failed(batch)
            raise
        self._sequence_numbers[worker] = batch.sequence_numbers_after(batch.num_steps)

    def _count_failed(self, batch: Batch) -> None:
        """Notes what a failed step has read: it is not read again."""
        # Where a server is lost, the job is over, and its error comes from elsewhere.
        with contextlib.suppress(tf.errors.OpError):
            numbers = self._read_sequence_numbers(batch.first.worker)
            _place_of(batch).num_steps += batch.num_done(numbers) + 1

    def _run(self, batch: Batch, iterators: Any) -> None:
        place = _place_of(batch)
        num_made_before, batch.num_made = batch.num_made, place.num_made
        batch.num_attempts += 1
        num_done = 0
        if batch.num_attempts > 1:
            self.num_redone += 1
            num_done = batch.num_done(self._read_sequence_numbers(batch.first.worker))
            if num_done and num_made_before != place.num_made:
                batch.first.skip(iterators, num_done)
        sequence_numbers = batch.sequence_numbers_after(num_done)
        outputs = batch.first.run(
            iterators, sequence_numbers, batch.num_steps - num_done
        )
        if batch.first.keeps_results:
            with tf.device(self._client_device):
                batch.first.results = [tf.identity(output) for output in outputs]
        place.num_steps += batch.num_steps
        for member in batch.members:
            member.is_done = True

    def _read_sequence_numbers(self, worker: int) -> tuple[int, ...]:
        return tuple(
            [
                int(commit_state.sequence_numbers[worker].numpy())
                for commit_state in self._commit_states
            ]
        )


def _place_of(batch: Batch) -> Place:
    source = batch.first.source
    return source.place if isinstance(source, WorkerPipelines) else Place()


_COUNTER = itertools.count()
# Stands for the sequence numbers among a step's captures; every step increments them.
_SEQUENCE_NUMBERS = tf.TensorSpec([], tf.int64)


class ServerProgram:
    """One step on one worker; its state is on the servers."""

    def __init__(
        self,
        step: ServerStep,
        topology: Topology,
        table: WorkerTable,
        placement: Placement,
    ) -> None:
        self.step = step  # as traced for all workers
        self.plans: tuple[CollectivePlan, ...] = plan.make_plan(
            step.traced.collectives, topology
        )
        entries = {
            name: table.require(variable, table.kind(variable))
            for name, variable in step.traced.variables.items()
        }
        self._used = UsedVariables(entries, table)
        analysis = Analysis(
            traced=step.traced,
            body=step.body,
            invariance=step.invariance,
            entries=entries,
            liveness=None,
            plans=self.plans,
            shares=(),
        )
        self._num_replicas = topology.num_local_replicas
        self._assembly = _ServerAssembly(
            f"server_program_{next(_COUNTER)}", step, analysis, topology, placement
        )
        self._assembly.register()

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        return self._used.is_stale()

    def prepare(
        self, source_spec: Any, *, is_loop: bool
    ) -> Callable[[Any, Any, int], Any]:
        """Builds a function that runs steps; call it in cross-replica context."""
        function = self._make_runner(is_loop=is_loop)
        # Sequence numbers and number of steps in one tensor: one input less to send.
        counts = tf.TensorSpec([len(self.step.num_commits) + 1], tf.int64)
        with _tf_dispatch.graph_optimizer_off():
            concrete = function.get_concrete_function(source_spec, counts)

        def run(source: Any, sequence_numbers: Sequence[int], num_steps: int) -> Any:
            with tf.device(connection_lib.client_device()):
                counts = tf.constant([*sequence_numbers, num_steps], tf.int64)
            with _tf_dispatch.graph_optimizer_off():
                return concrete(source, counts)

        return run

    def pack(self, flat: Sequence[Any]) -> Any:
        """Turns the outputs of ``prepare``'s function into a nest of ``PerReplica``."""
        return self._assembly.pack(flat)

    def _make_runner(self, *, is_loop: bool) -> Any:
        assembly = self._assembly

        @traced_once
        def program(source: Any, counts: tf.Tensor) -> list[tf.Tensor]:
            sequence_numbers, num_steps = counts[:-1], tf.cast(counts[-1], tf.int32)

            def one_step(index: tf.Tensor) -> list[tf.Tensor]:
                used = sequence_numbers + tf.cast(index, tf.int64) * list(
                    self.step.num_commits
                )
                captured = [
                    used if c is _SEQUENCE_NUMBERS else c for c in assembly.captured
                ]
                batch = (
                    [] if source is None else next_batches(source, self._num_replicas)
                )
                return assembly.call(captured, batch)

            count = num_steps if is_loop else 1
            return repeat(one_step, count, assembly.output_specs)

        return program


class _ServerAssembly(Assembly):
    """The function of one worker, which reads variables where the step reads first."""

    def __init__(
        self,
        name: str,
        step: ServerStep,
        analysis: Analysis,
        topology: Topology,
        placement: Placement,
    ) -> None:
        super().__init__(name, analysis, topology)
        self._step = step
        self._placement = placement
        self._pulled: dict[str, Ref] = {}

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
            server_device=self._placement.devices[each.server],
            worker_device=self._topology.replica_devices[0],
            handle=lambda name: str(super(_ServerAssembly, self)._resolve(0, name)),
            clock=self.copies.name(0, each.clock),
        )
        self._emit.nodes.extend(nodes)
        self._pulled.update(values)
