"""Coordination of worker processes in between-graph replication.

TensorFlow's servers and its coordination service do the work. This module has the
exchange of short strings by which workers agree before they run, and a guard around
collectives. Every wait has a timeout.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator._tf.messages import reason_of
from replicator.cluster.workers import worker_state
from replicator.cluster.workers.worker_state import WorkerState, key_of
from replicator.errors import (
    DisagreementError,
    ReplicasOutOfSyncError,
    ReplicatorError,
    WorkerLostError,
)
from replicator.placement.topology import CPU_GROUP_KEY, Group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_POLL_SEC = 1.0


class WorkerRuntime:
    """One replicator's communication with the other workers, within its time limit."""

    def __init__(self, state: WorkerState, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self._worker = state

    @property
    def num_workers(self) -> int:
        return self._worker.config.num_workers

    @property
    def worker_id(self) -> int:
        return self._worker.config.worker_id

    def name_of(self, worker_id: int) -> str:
        return self._worker.config.name_of(worker_id)

    def exchange(self, what: str, text: str) -> list[str]:
        """Sends a string to all workers and returns theirs.

        All workers call this in the same order.
        """
        self._worker.check_not_lost()
        self._worker.doing = what
        # Numbers, not names, tell one exchange from the next: workers draw them in the
        # same order, and a worker that is elsewhere is seen by what it says it does.
        number = next(self._worker.numbers)
        message = json.dumps({"what": what, "text": text})
        mine = key_of(f"exchange/{number}", self.worker_id)
        deadline = time.monotonic() + self.timeout_sec
        try:
            _tf_workers.put_value(mine, message)
        except tf.errors.OpError as error:
            raise self._worker.lose(self._diagnose(error)) from error
        answers = [
            json.loads(self._wait_for(worker, number, deadline, what))
            for worker in range(self.num_workers)
        ]
        self._worker.retract()
        if number > 1:
            # All workers are at this exchange, so all have read the last but one.
            with contextlib.suppress(tf.errors.OpError):
                _tf_workers.delete_value(
                    key_of(f"exchange/{number - 2}", self.worker_id)
                )
        self._check_same_place([answer["what"] for answer in answers])
        return [answer["text"] for answer in answers]

    def _check_same_place(self, places: list[str]) -> None:
        """Checks that all workers, by id, are at the same exchange."""
        for worker, place in enumerate(places):
            if place != places[0]:
                error = DisagreementError(
                    f"workers disagree: {self.name_of(0)} is at {places[0]}, but "
                    f"{self.name_of(worker)} is at {place}; every worker must run the "
                    "same program: the same calls of the replicator in the same order"
                )
                raise self._worker.lose(error)

    def agree(self, what: str, description: dict[str, Any]) -> None:
        """Checks that all workers are about to run the same program."""
        texts = self.exchange(what, json.dumps(description))
        for worker, text in enumerate(texts):
            if text == texts[0]:
                continue
            first, other = json.loads(texts[0]), json.loads(text)
            where, ours, theirs = worker_state.difference(first, other)
            raise DisagreementError(
                f"workers are about to run different programs at {what}: {where} is "
                f"{ours} on {self.name_of(0)}, but {theirs} on "
                f"{self.name_of(worker)}; every worker must run the same step "
                "functions on inputs of the same shapes and types, in the same order"
            )

    def report_failure(self, what: str, failure: str) -> None:
        """Reports to the others that this worker failed before a run.

        They raise ``DisagreementError``, unless they failed in the same way.
        """
        with contextlib.suppress(DisagreementError):
            self.agree(what, {"failure": failure})

    def group(self) -> Group:
        """The worker group of the collectives of this process's programs."""
        if self._worker.group is None:
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
            message = str(error.message)
            if "replicator: shapes differ" in message:
                raise self._worker.lose(
                    worker_state.shape_error(what, message)
                ) from error
            if not worker_state.is_collective_failure(error):
                self._worker.abort(f"failed in {what}: {reason_of(error)}")
                raise
            raise self._worker.lose(self._diagnose(error)) from error

    def _end_of_input(self, what: str) -> None:
        """Checks that the data of all workers ended in the same step."""
        what = f"the end of its input in {what}"
        with contextlib.suppress(DisagreementError):
            try:
                self.exchange(what, "")
            except WorkerLostError as error:
                self._worker.abort(f"reached {what}, but other workers did not")
                raise WorkerLostError(
                    f"{self.name_of(self.worker_id)} reached {what}, but not "
                    "every worker did: pipelines have different lengths; repeat() the "
                    "datasets, or give all workers the same number of batches "
                    f"({error})"
                ) from error

    def _wait_for(self, worker: int, number: int, deadline: float, what: str) -> str:
        key = key_of(f"exchange/{number}", worker)
        while True:
            left_sec = max(deadline - time.monotonic(), 0.01)
            try:
                return _tf_workers.get_value(key, min(left_sec, _POLL_SEC))
            except tf.errors.DeadlineExceededError as error:
                name = self._worker.config.name_of(worker)
                self._worker.report()
                if self._worker.has_exited(worker):
                    raise self._worker.lose(
                        self._diagnose(error, f"no response from {name}")
                    ) from error
                if left_sec > _POLL_SEC:
                    continue
                raise self._worker.lose(
                    WorkerLostError(
                        f"{name} did not reach {what} within {self.timeout_sec:g} s; "
                        "every worker must make the same calls in the same order; if "
                        "it is only slow, use a larger timeout_sec"
                    )
                ) from error
            except tf.errors.OpError as error:
                raise self._worker.lose(self._diagnose(error)) from error

    def _diagnose(self, error: tf.errors.OpError, message: str = "") -> ReplicatorError:
        text = message or str(error.message)
        return worker_state.diagnose(self._worker, text, self.timeout_sec)


def digest(variable: Any) -> str:
    return hashlib.blake2b(variable.numpy().tobytes(), digest_size=16).hexdigest()


def gather_bytes(runtime: WorkerRuntime, payload: bytes) -> list[bytes]:
    """Gathers one byte string from every worker; see ``Replicator.gather_bytes``."""
    text = base64.b64encode(payload).decode("ascii")
    texts = runtime.exchange("an exchange of bytes (a checkpoint)", text)
    return [base64.b64decode(text) for text in texts]


def compare(
    runtime: WorkerRuntime, failure: str, digests: Mapping[int, tuple[str, str]]
) -> None:
    """Compares mirrored variables over workers."""
    text = json.dumps({"failure": failure, "digests": digests})
    answers = [
        json.loads(answer) for answer in runtime.exchange("assert_in_sync()", text)
    ]
    for worker, answer in enumerate(answers):
        if answer["failure"]:
            raise ReplicasOutOfSyncError(
                f"on {runtime.name_of(worker)}: {answer['failure']}"
            )
        others = answer["digests"]
        differing = [
            name
            for number, (name, mine) in answers[0]["digests"].items()
            if number in others and others[number][1] != mine
        ]
        if differing:
            raise ReplicasOutOfSyncError(
                f"{len(differing)} mirrored variables differ between "
                f"{runtime.name_of(0)} and {runtime.name_of(worker)}: "
                f"{', '.join(differing[:5])}; assign variables outside run() on "
                "every worker, with the same values"
            )
