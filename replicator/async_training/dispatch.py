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
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training.assignment import make_batch
from replicator.async_training.first_wait import FirstWait
from replicator.async_training.inputs import Place, WorkerPipelines
from replicator.cluster import membership
from replicator.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.async_training.assignment import Assignment, Batch
    from replicator.async_training.commit_state import CommitState
    from replicator.async_training.connection import Connection
    from replicator.async_training.faults import ServerWatch

# The coordinator starts again what raised these, where the worker is back.
_OF_LOST_WORKERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.UnavailableError,
)
_POLL_SEC = 0.02
_SERVERS_POLL_SEC = 1.0


class Dispatcher:
    """Hands assignments to the workers of one replicator.

    Attributes:
      num_redone: Assignments that were started again because a worker was lost.
    """

    def __init__(
        self,
        connection: Connection,
        commit_states: Sequence[CommitState],
        recovery_timeout_sec: float,
        client_device: str,
        watch: ServerWatch,
    ) -> None:
        self.num_redone = 0
        self._connection = connection
        self._commit_states = commit_states
        self._recovery_timeout_sec = recovery_timeout_sec
        self._client_device = client_device
        self._watch = watch
        self._pending: list[Assignment] = []
        self._lost_worker: WorkerLostError | None = None
        self._waits = [
            FirstWait(recovery_timeout_sec) for _ in range(connection.num_workers)
        ]
        # By worker, its sequence numbers by server; None where a step failed half way.
        self._sequence_numbers: list[tuple[int, ...] | None] = [
            (0,) * len(commit_states) for _ in range(connection.num_workers)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was handed out is waited for."""
        return not self._pending

    def hand_out(self, assignment: Assignment) -> None:
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
