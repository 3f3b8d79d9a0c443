"""What one worker process knows of its job, and which workers are lost.

All its replicators share the state. Errors name the workers that began a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator._tf.messages import first_line, is_derived
from replicator.cluster.liveness.deadline import Deadline
from replicator.cluster.liveness.peer import Peer
from replicator.errors import DisagreementError, ReplicatorError, WorkerLostError

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig
    from replicator.placement.topology import Group

_PEER_CHECK_SEC = 2.0
# How reports of failures begin; others say what a worker waits for.
FAILURES = ("failed in ", "reached ")
_FROM_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
# How long workers wait for reports of the others after a worker was lost.
_GRACE_SEC = 5.0


class WorkerState:
    """This process as a worker of a cluster; one per process."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.doing = "starting"  # or the last operation, for the errors of others
        self.group: Group | None = None  # once it was found out
        self.numbers = itertools.count()  # of exchanges; all draw them in one order
        self.deadline = Deadline(self._end_collectives)
        self._lost: ReplicatorError | None = None
        self._has_reported = False
        self._peers = {
            worker: Peer(config.address_of(worker))
            for worker in range(config.num_workers)
            if worker != config.worker_id
        }

    @property
    def others(self) -> list[int]:
        return list(self._peers)

    def check_not_lost(self) -> None:
        """Raises the error that ended communication, if there was one."""
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args) from self._lost

    def lose(self, error: ReplicatorError) -> ReplicatorError:
        self._lost = error
        return error

    def abort(self, why: str) -> None:
        """Reports a failure to the others at once, so that they do not wait."""
        if self._lost is None and self.config.num_workers > 1:
            name = self.config.name_of(self.config.worker_id)
            self.report(why)
            _tf_workers.abort_collectives(f"{name} {why}")
            self._lost = WorkerLostError(
                f"{name} {why}; its collectives were aborted, so that other workers do "
                "not wait for it; restart the job from its last checkpoint"
            )

    def report(self, what: str = "") -> bool:
        """Reports why it does not continue; returns whether that was possible."""
        if not self._has_reported:
            try:
                _tf_workers.put_value(
                    key_of("fault", self.config.worker_id), what or self.doing
                )
            except tf.errors.OpError:
                return False
            self._has_reported = True
        return True

    def retract(self) -> None:
        if self._has_reported:
            self._has_reported = False
            with contextlib.suppress(tf.errors.OpError):
                _tf_workers.delete_value(key_of("fault", self.config.worker_id))

    def fault_of(self, worker: int) -> str:
        """What is wrong with a worker; empty if nothing is."""
        if self.has_exited(worker):
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

    def has_exited(self, worker: int) -> bool:
        """Whether a worker's process has exited, whoever listens there now."""
        return worker != self.config.worker_id and self._peers[worker].has_ended()

    def _end_collectives(self) -> None:
        """Ends a wait for other workers; called from another thread."""
        _tf_workers.abort_collectives(
            f"Collective has timed out waiting for other workers in {self.doing}"
        )


def key_of(topic: str, worker: int) -> str:
    """Where a worker's part of a topic is, in the coordination service."""
    return f"replicator/{topic}/{worker}"


def difference(first: Any, second: Any, where: str = "the program") -> tuple[str, ...]:
    """Finds the first difference of two JSON values: its place and both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(k for k in second if k not in first)]:
            if key not in first or key not in second:
                return key, str(first.get(key)), str(second.get(key))
            if first[key] != second[key]:
                return difference(first[key], second[key], key)
    if isinstance(first, list) and isinstance(second, list):
        for index, (ours, theirs) in enumerate(zip(first, second, strict=False)):
            if ours != theirs:
                return difference(ours, theirs, f"#{index} of {where}")
        return f"the number of {where}", str(len(first)), str(len(second))
    return where, repr(first), repr(second)


def shape_error(what: str, message: str) -> ReplicatorError:
    """Makes the error for tensors of different shapes from TensorFlow's message."""
    shapes = message.partition("shapes differ between workers")[2]
    return DisagreementError(
        f"a collective in {what} got tensors of different shapes on different workers "
        f"(dimensions by worker, then a one: {first_line(shapes.strip(' [],'))}); "
        "all replicas must pass the same shapes: reduce over the examples first "
        "(mean_over_examples weights the uneven batches of split_global_batches), or "
        "pad the tensors"
    )


def is_collective_failure(error: tf.errors.OpError) -> bool:
    """Tells whether an error of TensorFlow is about other workers.

    These status codes come from transport and from collectives that were ended; the
    ops of a step do not use them. Other codes are shared with ordinary ops; TensorFlow
    marks those that a collective got from elsewhere. Names in the message say nothing:
    a layer may be called "collective".
    """
    return isinstance(error, _FROM_OTHERS) or is_derived(error)


def root_cause(message: str) -> str:
    """The root cause in TensorFlow's message, without the errors that it propagated."""
    for line in message.splitlines():
        if "aborted by" in line or "timed out" in line:
            return line.rpartition("aborted by: ")[2]
    return first_line(message)


def diagnose(state: WorkerState, message: str, timeout_sec: float) -> ReplicatorError:
    """Finds out which workers are lost, after a collective has failed."""
    config, others = state.config, state.others
    reports: dict[int, str] = {}
    has_leader = state.report()
    deadline = time.monotonic() + _GRACE_SEC
    faults: dict[int, str] = {}
    for worker in others:
        faults[worker] = state.fault_of(worker)
    for worker in others if has_leader else ():
        wait_sec = deadline - time.monotonic() if not faults[worker] else 0.05
        with contextlib.suppress(tf.errors.OpError):
            reports[worker] = _tf_workers.get_value(
                key_of("fault", worker), max(wait_sec, 0.05)
            )
    lost = [
        f"{config.name_of(worker)} {faults[worker]}"
        for worker in others
        # A worker that reported its position failed because of the lost one.
        if faults[worker] and worker not in reports
    ]
    silent = [w for w in others if not faults[w] and w not in reports]
    if not lost and has_leader:
        lost = [f"{config.name_of(w)} is alive, but timed out" for w in silent]
    elsewhere = [
        f"{config.name_of(w)} {_said(doing)}"
        for w, doing in reports.items()
        if doing != state.doing
    ]
    reason = "; ".join([*lost, *elsewhere]) or root_cause(message)
    return WorkerLostError(
        f"{config.name_of(config.worker_id)} failed during {state.doing}: "
        f"{reason}; a synchronous step needs every worker: restart the job from "
        "its last checkpoint (if a worker is only slow, increase timeout_sec, "
        f"which is {timeout_sec:g} s)"
    )


def _said(report: str) -> str:
    """A worker's report: how it failed, or where it was."""
    return report if report.startswith(FAILURES) else f"was at {report}"
