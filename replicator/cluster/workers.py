"""Coordination of worker processes, by TensorFlow's coordination service.

Workers exchange short strings to agree before they run, and collectives are guarded.
Every wait has a timeout.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import errors
from replicator._tf import workers as _tf_workers
from replicator._tf.workers import first_line, is_derived, reason_of
from replicator.cluster import liveness, membership, port_filter
from replicator.cluster.liveness import Deadline, Peer
from replicator.core.devices import CPU_GROUP_KEY, Group

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig


DEFAULT_HEARTBEAT_TIMEOUT_SEC = 10.0
_PEER_CHECK_SEC = 2.0
# How reports of failures begin; others say what a worker waits for.
FAILURES = ("failed in ", "reached ")
_FROM_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_CAUSE = re.compile("aborted by|timed out")
_SHAPES_DIFFER = "replicator: shapes differ between workers"  # engine.emitter
# How long workers wait for reports of the others after a worker was lost.
_GRACE_SEC = 5.0


class WorkerState:
    """This process as a worker of a cluster; all its replicators share it."""

    def __init__(
        self,
        config: ClusterConfig,
        heartbeat_timeout_sec: float = DEFAULT_HEARTBEAT_TIMEOUT_SEC,
    ) -> None:
        self.config = config
        self.heartbeat_timeout_sec = heartbeat_timeout_sec
        self.doing = "starting"  # or the last operation, for the errors of others
        self.group: Group | None = None  # once it was found out
        self.numbers = itertools.count()  # of exchanges; all draw them in one order
        self.deadline = Deadline(self._end_collectives)
        self._lost: errors.ReplicatorError | None = None
        self._has_reported = False
        others = [w for w in range(config.num_workers) if w != config.worker_id]
        self.others = {worker: Peer(config.address_of(worker)) for worker in others}

    def check_not_lost(self) -> None:
        """Raises the error that ended communication, if there was one."""
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args) from self._lost

    def lose(self, error: errors.ReplicatorError) -> errors.ReplicatorError:
        self._lost = error
        return error

    def abort(self, why: str) -> None:
        """Reports a failure to the others at once, so that they do not wait."""
        if self._lost is None and self.config.num_workers > 1:
            name = self.config.name_of(self.config.worker_id)
            self.report(why)
            _tf_workers.abort_collectives(f"{name} {why}")
            self._lost = errors.WorkerLostError(
                f"{name} {why}; its collectives were aborted, so that other workers do "
                "not wait for it; restart the job from its last checkpoint"
            )

    def report(self, what: str = "") -> bool:
        """Reports why it does not continue; returns whether that was possible."""
        if not self._has_reported:
            key = key_of("fault", self.config.worker_id)
            try:
                _tf_workers.put_value(key, what or self.doing, _PEER_CHECK_SEC)
            except tf.errors.OpError:
                return False
            self._has_reported = True
        return True

    def retract(self) -> None:
        if self._has_reported:
            self._has_reported = False
            with contextlib.suppress(tf.errors.OpError):
                key = key_of("fault", self.config.worker_id)
                _tf_workers.delete_value(key, _PEER_CHECK_SEC)

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
        return worker != self.config.worker_id and self.others[worker].has_ended()

    def _end_collectives(self) -> None:
        """Ends a wait for other workers; called from another thread."""
        _tf_workers.abort_collectives(
            f"Collective has timed out waiting for other workers in {self.doing}"
        )


def key_of(topic: str, worker: int) -> str:
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


def is_collective_failure(error: tf.errors.OpError) -> bool:
    """Whether an error of TensorFlow is about other workers."""
    # Ops of a step do not use these codes; others, TensorFlow marks where a collective
    # got them from elsewhere. Names say nothing: a layer may be called "collective".
    return isinstance(error, _FROM_OTHERS) or is_derived(error)


def diagnose(
    state: WorkerState, message: str, timeout_sec: float
) -> errors.ReplicatorError:
    """Finds out which workers are lost, after a collective has failed."""
    config, others = state.config, state.others
    reports: dict[int, str] = {}
    has_leader = state.report()
    deadline = time.monotonic() + _GRACE_SEC
    faults = {worker: state.fault_of(worker) for worker in others}
    for worker in others if has_leader else ():
        wait_sec = 0.05 if faults[worker] else deadline - time.monotonic()
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
    for worker, doing in reports.items():
        if doing != state.doing:  # how it failed, or where it was
            said = doing if doing.startswith(FAILURES) else f"was at {doing}"
            lost.append(f"{config.name_of(worker)} {said}")
    # Without the errors that TensorFlow has propagated.
    causes = (line for line in message.splitlines() if _CAUSE.search(line))
    cause = next(causes, first_line(message)).rpartition("aborted by: ")[2]
    reason = "; ".join(lost) or cause
    return errors.WorkerLostError(
        f"{config.name_of(config.worker_id)} failed during {state.doing}: "
        f"{reason}; a synchronous step needs every worker: restart the job from "
        "its last checkpoint (if a worker is only slow, increase timeout_sec, "
        f"which is {timeout_sec:g} s)"
    )


_POLL_SEC = 1.0


class WorkerRuntime:
    """One replicator's communication with the other workers, within its time limit."""

    def __init__(self, state: WorkerState, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self.worker_id = state.config.worker_id
        self.num_workers = state.config.num_workers
        self.name_of = state.config.name_of
        self._worker = state

    def exchange(self, what: str, text: str) -> list[str]:
        """Sends a string to all workers and returns theirs; all call it alike."""
        self._worker.check_not_lost()
        self._worker.doing = what
        # Numbers, not names, tell one exchange from the next: workers draw them in the
        # same order, and a worker that is elsewhere is seen by what it says it does.
        number = next(self._worker.numbers)
        mine = key_of(f"exchange/{number}", self.worker_id)
        deadline = time.monotonic() + self.timeout_sec
        try:
            _tf_workers.put_value(
                mine, json.dumps([what, text]), self._worker.heartbeat_timeout_sec
            )
        except tf.errors.OpError as error:
            raise self._lost(str(error.message)) from error
        answers = [
            json.loads(self._wait_for(worker, number, deadline, what))
            for worker in range(self.num_workers)
        ]
        self._worker.retract()
        if number > 1:
            # All workers are at this exchange, so all have read the last but one.
            with contextlib.suppress(tf.errors.OpError):
                _tf_workers.delete_value(
                    key_of(f"exchange/{number - 2}", self.worker_id), _PEER_CHECK_SEC
                )
        for worker, (there, _) in enumerate(answers):
            if there != answers[0][0]:
                differs = errors.DisagreementError(
                    f"workers disagree: {self.name_of(0)} is at {answers[0][0]}, but "
                    f"{self.name_of(worker)} is at {there}; every worker must run the "
                    "same program: the same calls of the replicator in the same order"
                )
                raise self._worker.lose(differs)
        return [text for _, text in answers]

    def agree(self, what: str, description: dict[str, Any]) -> None:
        """Checks that all workers are about to run the same program."""
        texts = self.exchange(what, json.dumps(description))
        for worker, text in enumerate(texts):
            if text == texts[0]:
                continue
            first, other = json.loads(texts[0]), json.loads(text)
            where, ours, theirs = difference(first, other)
            raise errors.DisagreementError(
                f"workers are about to run different programs at {what}: {where} is "
                f"{ours} on {self.name_of(0)}, but {theirs} on "
                f"{self.name_of(worker)}; every worker must run the same step "
                "functions on inputs of the same shapes and types, in the same order"
            )

    def group(self) -> Group:
        """The worker group of the collectives of this process's programs."""
        if self._worker.group is None:
            with self.guard("the first collective"):
                parts = tf.raw_ops.CollectiveGatherV2(
                    input=[self.worker_id],
                    group_size=self.num_workers,
                    group_key=CPU_GROUP_KEY,
                    instance_key=0,
                    ordering_token=[],
                    communication_hint="ring",
                )
            self._worker.group = Group(
                num_workers=self.num_workers,
                worker_id=self.worker_id,
                order=tuple(int(worker) for worker in parts),
            )
        return self._worker.group

    @contextlib.contextmanager
    def guard(self, what: str, num_steps: int = 1) -> Iterator[None]:
        """Turns the failure of a collective into an error about the lost worker."""
        self._worker.check_not_lost()
        self._worker.doing = what
        try:
            with self._worker.deadline.limit(self.timeout_sec * num_steps):
                yield
        except tf.errors.OutOfRangeError:
            self._end_of_input(what)
            raise
        except tf.errors.OpError as error:
            _, differ, shapes = str(error.message).partition(_SHAPES_DIFFER)
            if differ:
                differing = errors.DisagreementError(
                    f"a collective in {what} got tensors of different shapes on "
                    "different workers (dimensions by worker, then a one: "
                    f"{first_line(shapes.strip(' [],'))}); all replicas must pass the "
                    "same shapes: reduce over the examples first (mean_over_examples "
                    "weights the uneven batches of split_global_batches), or pad the "
                    "tensors"
                )
                raise self._worker.lose(differing) from error
            if not is_collective_failure(error):
                self._worker.abort(f"failed in {what}: {reason_of(error)}")
                raise
            raise self._lost(str(error.message)) from error

    def _end_of_input(self, what: str) -> None:
        """Checks that the data of all workers ended in the same step."""
        what = f"the end of its input in {what}"
        with contextlib.suppress(errors.DisagreementError):
            try:
                self.exchange(what, "")
            except errors.WorkerLostError as error:
                self._worker.abort(f"reached {what}, but other workers did not")
                raise errors.WorkerLostError(
                    f"{self.name_of(self.worker_id)} reached {what}, but not "
                    "every worker did: pipelines have different lengths; repeat() the "
                    "datasets, or give all workers the same number of batches "
                    f"({error})"
                ) from error

    def _wait_for(self, worker: int, number: int, deadline: float, what: str) -> str:
        key = key_of(f"exchange/{number}", worker)
        answered = time.monotonic()
        while True:
            left_sec = max(deadline - time.monotonic(), 0.01)
            try:
                return _tf_workers.get_value(key, min(left_sec, _POLL_SEC))
            except tf.errors.DeadlineExceededError as error:
                name = self.name_of(worker)
                self._worker.report()
                # Heartbeats end collectives, but not this wait.
                if not self._worker.fault_of(worker):
                    answered = time.monotonic()
                silent_sec = time.monotonic() - answered
                is_silent = silent_sec > self._worker.heartbeat_timeout_sec
                if is_silent or self._worker.has_exited(worker):
                    raise self._lost(f"no response from {name}") from error
                if left_sec > _POLL_SEC:
                    continue
                late = errors.WorkerLostError(
                    f"{name} did not reach {what} within {self.timeout_sec:g} s; "
                    "every worker must make the same calls in the same order; if "
                    "it is only slow, use a larger timeout_sec"
                )
                raise self._worker.lose(late) from error
            except tf.errors.OpError as error:
                raise self._lost(str(error.message)) from error

    def _lost(self, message: str) -> errors.ReplicatorError:
        error = diagnose(self._worker, message, self.timeout_sec)
        return self._worker.lose(error)


def compare(
    runtime: WorkerRuntime, failure: str, numbered: Iterable[tuple[int, Any]]
) -> None:
    """Compares mirrored variables, each with its number, over workers."""
    digests = {}
    for number, variable in numbered:
        value = variable.numpy().tobytes()
        digest = hashlib.blake2b(value, digest_size=16).hexdigest()
        digests[number] = variable.name, digest
    text = json.dumps([failure, digests])
    answers = [*map(json.loads, runtime.exchange("assert_in_sync()", text))]
    for worker, (failed, others) in enumerate(answers):
        if failed:
            raise errors.ReplicasOutOfSyncError(
                f"on {runtime.name_of(worker)}: {failed}"
            )
        differing = [
            name
            for number, (name, mine) in answers[0][1].items()
            if number in others and others[number][1] != mine
        ]
        if differing:
            raise errors.ReplicasOutOfSyncError(
                f"{len(differing)} mirrored variables differ between "
                f"{runtime.name_of(0)} and {runtime.name_of(worker)}: "
                f"{', '.join(differing[:5])}; assign variables outside run() on "
                "every worker, with the same values"
            )


_LOG = logging.getLogger(__name__)
DEFAULT_TIMEOUT_SEC = 300.0
# TensorFlow's server gets at least this long, however long the workers took to start.
_SHORTEST_WAIT_SEC = 5.0


def join_cluster(
    config: ClusterConfig,
    *,
    timeout_sec: float = DEFAULT_TIMEOUT_SEC,
    heartbeat_timeout_sec: float = DEFAULT_HEARTBEAT_TIMEOUT_SEC,
) -> WorkerRuntime:
    """Makes this process a worker of its cluster, together with all others."""

    def start() -> None:
        _tf_workers.join_workers(
            config.training_addresses,
            config.kind,
            config.index,
            heartbeat_timeout_sec=heartbeat_timeout_sec,
        )

    def join() -> WorkerState:
        deadline = time.monotonic() + timeout_sec
        meet_workers(config, timeout_sec)
        with port_filter.guarded(config), _tf_workers.kept_sigterm():
            # TensorFlow's server waits for the others without a timeout.
            started = _tf_workers.in_thread(start)
            left_sec = max(deadline - time.monotonic(), _SHORTEST_WAIT_SEC)
            futures.wait([started], left_sec)
        if not started.done():
            raise errors.UnreachableError(
                "all workers responded, but not all joined the cluster in time: one "
                "exited while it was starting; see its output, and start all of them "
                "again"
            )
        if failure := started.exception():
            raise errors.ClusterError(
                f"TensorFlow could not join the cluster: {failure}; check TF_CONFIG on "
                "every worker, and start all of them again"
            ) from failure
        num_workers, worker_id = config.num_workers, config.worker_id
        _LOG.info("joined %d workers as worker %d", num_workers, worker_id)
        return WorkerState(config, heartbeat_timeout_sec)

    state = membership.join_once("between-graph", config, join)
    return WorkerRuntime(state, timeout_sec)


def meet_workers(config: ClusterConfig, timeout_sec: float) -> None:
    """Waits until every worker listens, as this process does until then."""
    if _tf_workers.has_started():
        raise errors.ClusterError(
            "TensorFlow has already run in this process, but a cluster must be joined "
            "before that; create the replicator first, before any tensor, variable or "
            "list of devices"
        )
    reach, backlog = port_filter.check(config), 2 * config.num_workers + 16
    with liveness.listen(config.address, backlog) as listener:
        port_filter.restrict(listener, reach)
        liveness.wait_for(config.training_addresses, timeout_sec)
