"""Dispatch: steps for one worker, through TensorFlow's coordinator, each counted once.

When a worker is lost, the coordinator waits until it is back, makes its iterators
again, and runs the unfinished work again. This module decides where that work resumes:
after the last step whose updates all servers have, with the same sequence numbers as
before. Assignments that queue up for a worker run in one dispatch, because a dispatch
costs more than a small step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import workers as _tf_workers
from replicator.checkpoint import position
from replicator.cluster import membership
from replicator.core.step import traced_once
from replicator.errors import ReplicatorError, WorkerLostError
from replicator.inputs import iterator
from replicator.inputs.context import (
    InputContext,
    InputFn,
    InputReplicationMode,
    pipeline_contexts,
)

if TYPE_CHECKING:
    from replicator.async_training.commit import CommitState
    from replicator.async_training.steps import WorkerSteps


# Pipelines are on the workers, and are restored when a worker comes back.


class RemotePipeline:
    """A pipeline as a graph, which a worker turns into a dataset."""

    def __init__(
        self, function: Any, divided: position.Division, num_skipped: int = 0
    ) -> None:
        self.element_spec = function.structured_outputs.element_spec
        self.division = divided
        self._function = function
        self._num_skipped = num_skipped

    def skip(self, num_batches: int) -> RemotePipeline:
        """The pipeline without its first elements; -1 leaves none."""
        return RemotePipeline(self._function, self.division, num_batches)

    def dataset(self) -> tf.data.Dataset:
        """Makes the dataset where it is called."""
        dataset = self._function()
        return dataset.skip(self._num_skipped) if self._num_skipped else dataset

    def __iter__(self) -> Any:
        return iter(self.dataset())


@dataclasses.dataclass(kw_only=True, eq=False)
class WorkerPipelines:
    """The iterators of one worker, and how far it has read them."""

    handle: Any = None  # What the coordinator knows them by.
    num_steps: int = 0  # Steps of all dispatches that have ended.
    num_made: int = 0  # How often they were made.


def skip_steps(iterators: Any, num_replicas: int, num_steps: int) -> None:
    """Reads and drops the batches of some steps, on the worker of the iterators."""

    @traced_once
    def skip(source: Any) -> Any:
        def drop(index: tf.Tensor) -> tf.Tensor:
            batch = iterator.next_batches(source, num_replicas)
            with tf.control_dependencies([iterator.all_read(batch)]):
                return index + 1

        return tf.while_loop(lambda index: index < num_steps, drop, [tf.constant(0)])

    skip(iterators)


class RemoteInputIterator(iterator.InputIterator):
    """Pipelines that are traced here and run on the workers."""

    stateless_reason = "its pipelines are on workers, which may be restarted"
    pads_last_step = False

    def _check(self, pipeline: Any) -> Any:
        return pipeline  # was checked when it was traced

    def _get_next(self) -> Any:
        raise ReplicatorError(
            "next() and get_next() cannot read in this process, because the pipelines "
            "are on the workers; pass the iterator to run(), and return values of "
            "interest from the step"
        )


class ServerInputIterator(RemoteInputIterator):
    """The pipelines of every worker; one that was restarted drops what it has had."""

    def __init__(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode,
        connection: membership.Connection,
        num_replicas_per_worker: int,
    ) -> None:
        if mode is InputReplicationMode.SINGLE:
            raise ReplicatorError(
                "InputReplicationMode.SINGLE distributes one pipeline to all workers, "
                "but the workers are asynchronous; use PER_WORKER or PER_REPLICA and "
                "shard in input_fn by ctx.input_pipeline_id"
            )
        self._connection = connection
        num_replicas = num_replicas_per_worker * connection.num_workers
        contexts = [
            dataclasses.replace(each, num_replicas_in_sync=num_replicas_per_worker)
            for each in pipeline_contexts(mode, num_replicas, connection.num_workers)
        ]
        self._share = len(contexts) // connection.num_workers
        super().__init__(
            lambda context: traced_dataset(input_fn, context), contexts, num_replicas
        )
        # The type of what one worker's program is given.
        self.source_spec = (tf.data.IteratorSpec(self.element_spec),) * self._share

    def _iterate(self, pipelines: Sequence[Any]) -> tuple[Any, ...]:
        """Makes the iterators on the workers; by worker, what knows them there."""
        num_workers = self._connection.num_workers
        batches_per_step = self.num_replicas // num_workers // self._share
        return tuple(
            self._on_worker(
                worker,
                pipelines[worker * self._share : (worker + 1) * self._share],
                batches_per_step,
            )
            for worker in range(num_workers)
        )

    def _on_worker(
        self, worker: int, pipelines: Sequence[RemotePipeline], batches_per_step: int
    ) -> WorkerPipelines:
        on_worker = WorkerPipelines()

        def make() -> Any:
            on_worker.num_made += 1
            num_batches = on_worker.num_steps * batches_per_step
            return tuple(
                iter(pipeline.dataset().skip(num_batches) if num_batches else pipeline)
                for pipeline in pipelines
            )

        on_worker.handle = _tf_compat.create_on_worker(
            self._connection.coordinator, worker, make, ()
        )
        return on_worker

    def _num_begun(self, error: BaseException, num_steps: int) -> int:
        """All that workers were given, as where nobody waits (``schedule``)."""
        return num_steps if isinstance(error, tf.errors.OpError) else 0


def traced_dataset(input_fn: InputFn, context: InputContext) -> RemotePipeline:
    """Calls an input function and keeps its pipeline as a graph."""
    divisions = []

    def make() -> tf.data.Dataset:
        dataset = iterator.to_pipeline(input_fn(context))
        divisions.append(position.division_of_dataset(dataset))  # a graph does not tell
        return dataset

    function = tf.function(make, autograph=False).get_concrete_function()
    return RemotePipeline(function, divisions[0])


# A worker that is lost does at most so many again; by then, a dispatch costs nothing
# against its steps.
MAX_STEPS_TOGETHER = 64


@dataclasses.dataclass(kw_only=True, eq=False)
class Assignment:
    """Steps that one worker was given."""

    worker: int
    steps: WorkerSteps
    num_steps: int
    source: Any  # Fixed values, the worker's pipelines, or None.
    spec: Any  # The type of what the worker then reads.
    keeps_results: bool  # Whether anybody will ask for the outputs.
    handle: Any = None  # What the coordinator knows it by.
    results: Sequence[Any] = ()  # Flat outputs of the last step, on the client.
    is_done: bool = False  # Whether all steps were run.
    # What it runs with; those after the first leave it to that one.
    batch: Batch | None = None

    def follows(self, first: Assignment) -> bool:
        """Whether it can run in one dispatch with another one, which comes before."""
        return (
            self.worker == first.worker
            and self.steps is first.steps
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
        return self.members[0]

    @property
    def num_steps(self) -> int:
        return sum(member.num_steps for member in self.members)

    def sequence_numbers_after(self, num_steps: int) -> tuple[int, ...]:
        """By server, the sequence numbers that are used after so many steps."""
        each = zip(
            self.first_sequence_numbers, self.first.steps.num_commits, strict=True
        )
        return tuple(number + num_steps * num_commits for number, num_commits in each)

    def num_done(self, sequence_numbers: Sequence[int]) -> int:
        """The steps whose updates all servers have; the last runs for its results."""
        # The server that is furthest behind counts: those ahead of it skip what they
        # have applied, but nobody could make up for a step that one of them lacks.
        num_commits = self.first.steps.num_commits
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


@dataclasses.dataclass
class _FirstWait:
    """The wait for the first dispatch of one worker."""

    since: float | None = None  # When it began, or made progress.
    seen: tuple[int, ...] = ()  # The worker's sequence numbers then.
    has_ended: bool = False  # Whether a dispatch has ended: no limit from then on.


class Dispatcher:
    """Hands assignments to the workers of one replicator."""

    # A server whose threads all wait for each other does not respond to reads either.
    answer_sec = 60.0

    def __init__(
        self,
        connection: membership.Connection,
        commit_states: Sequence[CommitState],
        recovery_timeout_sec: float,
    ) -> None:
        self.num_redone = 0  # assignments started again because a worker was lost
        self._connection = connection
        self._commit_states = commit_states
        self._recovery_timeout_sec = recovery_timeout_sec
        self._watch = connection.watch
        self._pending: list[Assignment] = []
        self._lost_worker: WorkerLostError | None = None
        self._waits = [_FirstWait() for _ in range(connection.num_workers)]
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
            wait.since = None
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
                self._waits[worker].has_ended = True
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
            self._waits[worker].since = None
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
        worker, wait = assignment.worker, self._waits[assignment.worker]
        now = time.monotonic()
        if wait.since is None:
            wait.since = now
        # Without updates, nothing shows which of the steps it runs.
        num_steps = 1 if any(assignment.steps.num_commits) else assignment.num_steps
        limit_sec = self._recovery_timeout_sec * num_steps
        if wait.has_ended or now - wait.since <= limit_sec:
            return False
        before, wait.seen = wait.seen, ()
        asked = _tf_workers.in_thread(lambda: self._read_sequence_numbers(worker))
        # Errors are raised elsewhere.
        with contextlib.suppress(futures.TimeoutError, tf.errors.OpError):
            wait.seen = asked.result(self.answer_sec)
        if any(wait.seen) and wait.seen != before:
            wait.since = None
            return False
        address = self._connection.cluster.addresses["worker"][worker]
        least = membership.LEAST_THREADS
        self._lost_worker = WorkerLostError(
            f"worker {worker} ({address}) has made no progress in its first steps for "
            f"{limit_sec:g} s; {membership.describe_threads()}; each process of the "
            f"cluster needs {least} threads or more: run `python -m replicator.server` "
            "on workers and servers, which sets them, or call tf.config.threading."
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
            # What a failed step has read is not read again. Where a server is lost, the
            # job is over, and its error comes from elsewhere.
            if not isinstance(error, _OF_LOST_WORKERS):
                with contextlib.suppress(tf.errors.OpError):
                    num_done = batch.num_done(self._read_sequence_numbers(worker))
                    _pipelines_of(batch).num_steps += num_done + 1
            raise
        self._sequence_numbers[worker] = batch.sequence_numbers_after(batch.num_steps)

    def _run(self, batch: Batch, iterators: Any) -> None:
        first = batch.first
        pipelines = _pipelines_of(batch)
        num_made_before, batch.num_made = batch.num_made, pipelines.num_made
        batch.num_attempts += 1
        num_done = 0
        if batch.num_attempts > 1:
            self.num_redone += 1
            num_done = batch.num_done(self._read_sequence_numbers(first.worker))
            if num_done and num_made_before != pipelines.num_made:
                num_replicas = first.steps.programs[first.worker].num_replicas
                skip_steps(iterators, num_replicas, num_done)
        sequence_numbers = batch.sequence_numbers_after(num_done)
        num_left = batch.num_steps - num_done
        run = first.steps.function(first.worker, first.spec, is_loop=num_left > 1)
        is_read = isinstance(first.source, WorkerPipelines)
        source = iterators if is_read else first.source
        outputs = run(source, sequence_numbers, num_left)
        if first.keeps_results:
            with tf.device(membership.CLIENT_DEVICE):
                first.results = [tf.identity(output) for output in outputs]
        pipelines.num_steps += batch.num_steps
        for member in batch.members:
            member.is_done = True

    def _read_sequence_numbers(self, worker: int) -> tuple[int, ...]:
        numbers = [state.sequence_numbers[worker] for state in self._commit_states]
        return tuple(int(number.numpy()) for number in numbers)


def _pipelines_of(batch: Batch) -> WorkerPipelines:
    source = batch.first.source
    return source if isinstance(source, WorkerPipelines) else WorkerPipelines()
