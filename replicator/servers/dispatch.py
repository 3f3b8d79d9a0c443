"""Dispatch: steps for one worker, through TensorFlow's coordinator, each counted once.

The coordinator runs what it was given in one thread per worker, notices that a worker
is gone, waits until it is back, makes its iterators again, and runs again what was not
finished. What happens in between is decided here: a step that is done again starts
after the last one whose updates all servers have, and skips, on a server that has its
update already, what is there.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat
from replicator.errors import ServerLostError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.servers.connection import Connection
    from replicator.servers.ledger import Ledger

_POLL_SEC = 0.02


@dataclasses.dataclass(kw_only=True)
class Assignment:
    """Steps that one worker was given.

    Attributes:
      worker: Which worker.
      num_steps: How many steps.
      num_commits: By server, commits of one step.
      run: Runs the steps from the iterators of the worker.
      redo: Runs so many of the last steps again; skips applied updates.
      handle: What the coordinator knows it by.
      results: Flat outputs of the last step, on the client.
      num_attempts: How often it was started.
      first_tickets: By server, the worker's tickets before the first step.
    """

    worker: int
    num_steps: int
    num_commits: tuple[int, ...]
    run: Callable[[Any], Any]
    redo: Callable[[Any, int], Any]
    handle: Any = None
    results: list[Any] | None = None
    num_attempts: int = 0
    first_tickets: tuple[int, ...] = ()


class Dispatcher:
    """Hands assignments to the workers of one replicator.

    Attributes:
      num_redone: Assignments that were started again because a worker was lost.
    """

    def __init__(
        self,
        connection: Connection,
        ledgers: Sequence[Ledger],
        worker_timeout_sec: float,
        client_device: str,
    ) -> None:
        self.num_redone = 0
        self._connection = connection
        self._ledgers = ledgers
        self._worker_timeout_sec = worker_timeout_sec
        self._client_device = client_device
        self._pending: list[Assignment] = []
        self._broken: Exception | None = None
        # By worker, its tickets by server; None where a step failed half way.
        self._tickets: list[tuple[int, ...] | None] = [
            (0,) * len(ledgers) for _ in range(connection.num_workers)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was handed out is waited for."""
        return not self._pending

    def hand_out(self, assignment: Assignment, iterators: Any) -> None:
        """Gives steps to a worker; does not wait.

        Raises:
          ServerLostError: A parameter server was lost before.
        """
        if self._broken is not None:
            raise self._broken
        assignment.handle = _tf_compat.create_on_worker(
            self._connection.coordinator,
            assignment.worker,
            lambda *sources: self._work(assignment, sources[0] if sources else None),
            () if iterators is None else (iterators,),
        )
        self._pending.append(assignment)

    def join(self) -> None:
        """Waits until everything that was handed out is done.

        Raises:
          ServerLostError: A parameter server does not answer.
          WorkerLostError: A worker was lost and did not come back in time.
          Exception: What a step raised, such as ``tf.errors.OutOfRangeError``.
        """
        failure: BaseException | None = None
        lost_since: dict[int, float] = {}
        for assignment in self._pending:
            error = self._wait(assignment, lost_since)
            failure = failure or error
            if isinstance(error, (ServerLostError, WorkerLostError)):
                break
        self._pending.clear()
        if isinstance(failure, (ServerLostError, WorkerLostError)):
            self._broken = failure
        if failure is not None:
            raise failure

    def _wait(
        self, assignment: Assignment, lost_since: dict[int, float]
    ) -> BaseException | None:
        worker = assignment.worker
        while True:
            state, error = _tf_compat.remote_state(assignment.handle, _POLL_SEC)
            if state == "ready":
                return self._explain(error) if error is not None else None
            if state == "pending":
                continue
            since = lost_since.setdefault(worker, time.monotonic())
            if assignment.results is not None:
                return None
            if time.monotonic() - since > self._worker_timeout_sec:
                address = self._connection.cluster.addresses["worker"][worker]
                return WorkerLostError(
                    f"worker {worker} ({address}) was lost and did not come back "
                    f"within {self._worker_timeout_sec:g} s; start `python -m "
                    "replicator.server` there again, or make the replicator with a "
                    "larger worker_timeout_sec; then restore the last checkpoint"
                )
            time.sleep(_POLL_SEC)

    def _explain(self, error: BaseException) -> BaseException:
        server = _tf_compat.failed_server(error)
        if server is None:
            return error
        address = self._connection.cluster.addresses["ps"][server]
        lost = ServerLostError(
            f"parameter server {server} ({address}) does not answer, and the variables "
            "that it held are gone; start it again, start the chief again, and "
            "restore the last checkpoint"
        )
        lost.__cause__ = error
        return lost

    def _work(self, assignment: Assignment, iterators: Any) -> None:
        """Runs on the coordinator's thread for the worker, one at a time."""
        if assignment.results is not None:
            return  # done before the worker was lost
        worker = assignment.worker
        known, self._tickets[worker] = self._tickets[worker], None
        assignment.num_attempts += 1
        if assignment.num_attempts == 1:
            assignment.first_tickets = known or self._read_tickets(worker)
            outputs = assignment.run(iterators)
        else:
            self.num_redone += 1
            outputs = assignment.redo(iterators, self._num_left(assignment))
        with tf.device(self._client_device):
            # Here, so that a worker which is lost before this is done does it again.
            assignment.results = [tf.identity(output) for output in outputs]
        self._tickets[worker] = tuple(
            ticket + assignment.num_steps * num_commits
            for ticket, num_commits in zip(
                assignment.first_tickets, assignment.num_commits, strict=True
            )
        )

    def _read_tickets(self, worker: int) -> tuple[int, ...]:
        return tuple(int(ledger.tickets[worker].numpy()) for ledger in self._ledgers)

    def _num_left(self, assignment: Assignment) -> int:
        """Finds the step at which servers stand, and sets the redo to it.

        Returns:
          Steps to run again, the last one in any case, for its result.
        """
        worker = assignment.worker
        tickets = self._read_tickets(worker)
        num_done = assignment.num_steps - 1 if any(assignment.num_commits) else 0
        for server, num_commits in enumerate(assignment.num_commits):
            if num_commits:
                applied = tickets[server] - assignment.first_tickets[server]
                num_done = min(num_done, applied // num_commits)
        for server, num_commits in enumerate(assignment.num_commits):
            start = assignment.first_tickets[server] + num_done * num_commits
            self._ledgers[server].attempts[worker].assign(start)
        return assignment.num_steps - num_done
