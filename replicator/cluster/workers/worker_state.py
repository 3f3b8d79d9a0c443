"""What one worker process knows of its job; all its replicators share it."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.cluster.liveness.deadline import Deadline
from replicator.cluster.liveness.peer import Peer
from replicator.errors import ReplicatorError, WorkerLostError

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig
    from replicator.placement.worker_group import Group

_PEER_CHECK_SEC = 2.0


# How reports of failures begin; others say what a worker waits for.
FAILURES = ("failed in ", "reached ")


class WorkerState:
    """This process as a worker of a cluster; one per process.

    Attributes:
      config: The cluster.
      doing: The current or last operation of this worker, for the errors of others.
      group: What collectives need to know, once it was found out.
      numbers: Of exchanges; all workers draw them in the same order.
      deadline: Ends collectives that take too long.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.doing = "starting"
        self.group: Group | None = None
        self.numbers = itertools.count()
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
        """The ids of all other workers."""
        return list(self._peers)

    def check_not_lost(self) -> None:
        """Raises the error that ended communication, if there was one."""
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args) from self._lost

    def lose(self, error: ReplicatorError) -> ReplicatorError:
        """Remembers the error that ends this process's communication."""
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
        """Reports why this worker does not continue; returns whether that was possible.

        Args:
          what: How it failed (``FAILURES``); by default, what it waits for.
        """
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
        """Withdraws the report, once an exchange has succeeded."""
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
