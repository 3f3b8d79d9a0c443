"""Coordination of worker processes in between-graph replication.

TensorFlow's servers and its coordination service do the work. This module has the
exchange of short strings by which workers agree before they run, and the diagnosis
after a collective has failed. Every wait has a timeout.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.cluster import exchange as worker_sync
from replicator.cluster import failures
from replicator.cluster.deadline import Deadline
from replicator.cluster.peer import Peer
from replicator.errors import (
    DisagreementError,
    ReplicatorError,
    WorkerLostError,
)
from replicator.placement.worker_group import CPU_GROUP_KEY, Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.cluster.configuration import ClusterConfig

_POLL_SEC = 1.0
# How long workers wait for reports of the others after a worker was lost.
_GRACE_SEC = 5.0
_PEER_CHECK_SEC = 2.0


class WorkerRuntime:
    """This process as a worker of a cluster; one per process.

    Attributes:
      config: The cluster.
      timeout_sec: Longest duration of a step or an exchange that waits for others.
      doing: The current or last operation of this worker, for the errors of others.
    """

    def __init__(self, config: ClusterConfig, timeout_sec: float) -> None:
        self.config = config
        self.timeout_sec = timeout_sec
        self.doing = "starting"
        self._num_exchanges = 0
        self._lost: ReplicatorError | None = None
        self._group: Group | None = None
        self._has_reported = False
        self._deadline = Deadline(self._end_collectives)
        self._peers = {
            worker: Peer(config.address_of(worker))
            for worker in range(config.num_workers)
            if worker != config.worker_id
        }

    @property
    def num_workers(self) -> int:
        """Worker processes."""
        return self.config.num_workers

    @property
    def worker_id(self) -> int:
        """Index of this process."""
        return self.config.worker_id

    def name_of(self, worker_id: int) -> str:
        """Name of a worker in messages."""
        return self.config.name_of(worker_id)

    def exchange(self, what: str, text: str) -> list[str]:
        """Sends a string to all workers and returns theirs.

        All workers call this in the same order.

        Args:
          what: Description of the exchange in a few words, for errors.
          text: The string to send.

        Returns:
          The strings by worker id.

        Raises:
          DisagreementError: Another worker is at a different exchange.
          WorkerLostError: Another worker timed out or has exited.
        """
        self._check_not_lost()
        self.doing = what
        number = self._num_exchanges
        self._num_exchanges += 1
        message = json.dumps({"what": what, "text": text})
        mine = self._key(f"exchange/{number}", self.worker_id)
        deadline = time.monotonic() + self.timeout_sec
        try:
            _tf_workers.put_value(mine, message)
        except tf.errors.OpError as error:
            raise self._lose(self._diagnose(str(error))) from error
        answers = [
            json.loads(self._wait_for(worker, number, deadline, what))
            for worker in range(self.num_workers)
        ]
        if self._has_reported:
            self._has_reported = False
            with contextlib.suppress(tf.errors.OpError):
                _tf_workers.delete_value(self._key("fault", self.worker_id))
        if number > 1:
            # All workers are at this exchange, so all have read the last but one.
            with contextlib.suppress(tf.errors.OpError):
                _tf_workers.delete_value(
                    self._key(f"exchange/{number - 2}", self.worker_id)
                )
        try:
            worker_sync.check_same_place(self, [answer["what"] for answer in answers])
        except DisagreementError as error:
            raise self._lose(error) from None
        return [answer["text"] for answer in answers]

    def agree(self, what: str, description: dict[str, Any]) -> None:
        """Checks that all workers are about to run the same program.

        Args:
          what: Description of the program, for errors.
          description: JSON that must be identical on all workers.

        Raises:
          DisagreementError: It is not; the message has both values. Raised on all
            workers, before anything runs.
          WorkerLostError: See ``exchange``.
        """
        texts = self.exchange(what, json.dumps(description))
        for worker, text in enumerate(texts):
            if text == texts[0]:
                continue
            first, other = json.loads(texts[0]), json.loads(text)
            where, ours, theirs = failures.difference(first, other)
            raise DisagreementError(
                f"workers are about to run different programs at {what}: {where} is "
                f"{ours} on {self.config.name_of(0)}, but {theirs} on "
                f"{self.config.name_of(worker)}; every worker must run the same step "
                "functions on inputs of the same shapes and types, in the same order"
            )

    def report_failure(self, what: str, failure: str) -> None:
        """Reports to the others that this worker failed before a run.

        They raise ``DisagreementError``, unless they failed in the same way.
        """
        with contextlib.suppress(DisagreementError):
            self.agree(what, {"failure": failure})

    def group(self) -> Group:
        """The worker group of the collectives of this process's programs.

        Waits for all workers once, to find the order of the parts in a gather.
        """
        if self._group is None:
            what = "the first collective"
            with self.guard(what):
                parts = tf.raw_ops.CollectiveGatherV2(
                    input=[self.worker_id],
                    group_size=self.num_workers,
                    group_key=CPU_GROUP_KEY,
                    instance_key=0,
                    ordering_token=[],
                    communication_hint="ring",
                )
            self._group = Group(
                num_workers=self.num_workers,
                worker_id=self.worker_id,
                order=tuple(int(worker) for worker in parts),
            )
        return self._group

    @contextlib.contextmanager
    def guard(self, what: str, num_steps: int = 1) -> Iterator[None]:
        """Turns the failure of a collective into an error that names the lost worker.

        Args:
          what: The operation inside, in a few words, for errors here and elsewhere.
          num_steps: Steps that are run inside, each of which may take ``timeout_sec``.

        Raises:
          WorkerLostError: A worker exited or timed out.
          DisagreementError: Workers passed different shapes.
        """
        self._check_not_lost()
        self.doing = what
        try:
            with self._deadline.limit(self.timeout_sec * num_steps):
                yield
        except tf.errors.OutOfRangeError:
            self._end_of_input(what)
            raise
        except tf.errors.OpError as error:
            message = str(error.message)
            if "replicator: shapes differ" in message:
                raise self._lose(failures.shape_error(what, message)) from error
            if not failures.is_collective_failure(message):
                self._abort(f"failed in {what}: {failures.first_line(message)}")
                raise
            raise self._lose(self._diagnose(message)) from error

    def _end_collectives(self) -> None:
        """Aborts a wait for others; called from another thread."""
        _tf_workers.abort_collectives(
            f"Collective has timed out waiting for other workers in {self.doing}"
        )

    def _end_of_input(self, what: str) -> None:
        """Checks that the data of all workers ended in the same step."""
        what = f"the end of its input in {what}"
        with contextlib.suppress(DisagreementError):
            try:
                self.exchange(what, "")
            except WorkerLostError as error:
                self._abort(f"reached {what}, but other workers did not")
                raise WorkerLostError(
                    f"{self.config.name_of(self.worker_id)} reached {what}, but not "
                    "every worker did: pipelines have different lengths; repeat() the "
                    "datasets, or give all workers the same number of batches "
                    f"({error})"
                ) from error

    def _abort(self, why: str) -> None:
        """Aborts the collectives of all workers, which would wait for this one."""
        if self._lost is None and self.num_workers > 1:
            name = self.config.name_of(self.worker_id)
            _tf_workers.abort_collectives(f"{name} {why}")
            self._lost = WorkerLostError(
                f"{name} {why}; its collectives were aborted, so that other workers do "
                "not wait for it; restart the job from its last checkpoint"
            )

    def _check_not_lost(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args) from self._lost

    def _lose(self, error: ReplicatorError) -> ReplicatorError:
        """Records why this process cannot communicate any more."""
        self._lost = error
        return error

    def _wait_for(self, worker: int, number: int, deadline: float, what: str) -> str:
        """Waits for a worker's part of an exchange."""
        key = self._key(f"exchange/{number}", worker)
        while True:
            left_sec = max(deadline - time.monotonic(), 0.01)
            try:
                return _tf_workers.get_value(key, min(left_sec, _POLL_SEC))
            except tf.errors.DeadlineExceededError as error:
                name = self.config.name_of(worker)
                self._report_position()
                if self._has_ended(worker):
                    message = f"no response from {name}"
                    raise self._lose(self._diagnose(message)) from error
                if left_sec > _POLL_SEC:
                    continue
                raise self._lose(
                    WorkerLostError(
                        f"{name} did not reach {what} within {self.timeout_sec:g} s; "
                        "every worker must make the same calls in the same order; if "
                        "it is only slow, use a larger timeout_sec"
                    )
                ) from error
            except tf.errors.OpError as error:
                raise self._lose(self._diagnose(str(error.message))) from error

    def _diagnose(self, message: str) -> ReplicatorError:
        """Finds out which workers are lost, after a collective has failed."""
        others = [w for w in range(self.num_workers) if w != self.worker_id]
        reported: dict[int, str] = {}
        has_leader = self._report_position()
        deadline = time.monotonic() + _GRACE_SEC
        states: dict[int, str] = {}
        for worker in others:
            states[worker] = self._state(worker)
        for worker in others if has_leader else ():
            wait_sec = deadline - time.monotonic() if not states[worker] else 0.05
            with contextlib.suppress(tf.errors.OpError):
                reported[worker] = _tf_workers.get_value(
                    self._key("fault", worker), max(wait_sec, 0.05)
                )
        lost = [
            f"{self.config.name_of(worker)} {states[worker]}"
            for worker in others
            # A worker that reported its position failed because of the lost one.
            if states[worker] and worker not in reported
        ]
        silent = [w for w in others if not states[w] and w not in reported]
        if not lost and has_leader:
            lost = [f"{self.config.name_of(w)} is alive, but timed out" for w in silent]
        elsewhere = [
            f"{self.config.name_of(w)} was at {doing}"
            for w, doing in reported.items()
            if doing != self.doing
        ]
        reason = "; ".join([*lost, *elsewhere]) or failures.root_cause(message)
        return WorkerLostError(
            f"{self.config.name_of(self.worker_id)} failed during {self.doing}: "
            f"{reason}; a synchronous step needs every worker: restart the job from "
            "its last checkpoint (if a worker is only slow, increase timeout_sec, "
            f"which is {self.timeout_sec:g} s)"
        )

    def _report_position(self) -> bool:
        """Reports to the others what this worker waits for; False if it cannot."""
        if not self._has_reported:
            try:
                _tf_workers.put_value(self._key("fault", self.worker_id), self.doing)
            except tf.errors.OpError:
                return False
            self._has_reported = True
        return True

    def _state(self, worker: int) -> str:
        """What is wrong with a worker, or nothing."""
        if self._has_ended(worker):
            return "has exited"
        kind, index = self.config.workers[worker]
        try:
            _tf_workers.check_peer(kind, index, _PEER_CHECK_SEC)
        except tf.errors.DeadlineExceededError:
            return f"did not respond within {_PEER_CHECK_SEC:g} s"
        except tf.errors.FailedPreconditionError:
            return "has been restarted"
        except tf.errors.OpError:
            return "has exited"
        return ""

    def _has_ended(self, worker: int) -> bool:
        """Whether a worker's process has exited, even if another uses its address."""
        return worker != self.worker_id and self._peers[worker].has_ended()

    @staticmethod
    def _key(topic: str, worker: int) -> str:
        return f"replicator/{topic}/{worker}"
