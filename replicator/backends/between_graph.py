"""The common part of backends in which each worker process runs its own program.

Between-graph replication (Buchlovsky et al. 2019, figure 1): no process has all
replicas, so operations on the whole job are calls that every worker makes in the same
order.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from replicator.cluster.workers import runtime as worker_runtime
from replicator.contract import base, control, output_reduction
from replicator.errors import DisagreementError, ReplicasOutOfSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import tensorflow as tf

    from replicator.cluster.workers.runtime import WorkerRuntime
    from replicator.inputs.context import InputContext, InputReplicationMode
    from replicator.inputs.iterator import InputIterator


class BetweenGraphReplicator(base.Replicator):
    """A base class that comes before the class that runs one worker's replicas."""

    _runtime: WorkerRuntime

    @abc.abstractmethod
    def _numbered_mirrored(self) -> Iterable[tuple[int, Any]]:
        """Mirrored variables, each with a number that is the same on all workers."""

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> InputIterator:
        """Makes this worker's pipelines; ``next`` ends on all workers together."""
        inputs = super()._make_input_iterator(input_fn, mode, num_prefetched)
        inputs.uneven_inputs = _UnevenInputs(self)
        return inputs

    def reduce(self, op: str, value: Any) -> Any:
        """Reduces the return values of ``run`` over all replicas of the job.

        A collective: every worker calls it, in the same order, with values of the same
        structure. See ``Replicator.reduce``. A measuring control reduces the values of
        this process only: waiting for the others would be communication.
        """
        if self.without_communication:
            return super().reduce(op, value)
        return output_reduction.reduce_over_workers(
            self.run, op, value, self.num_local_replicas, self.maker
        )

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Gathers bytes from every worker; see ``Replicator.gather_bytes``."""
        return worker_runtime.gather_bytes(self._runtime, payload)

    def assert_in_sync(self) -> None:
        """Compares mirrored variables bit by bit, here and over workers.

        A collective: every worker calls it.

        Raises:
          MeasuringControlError: The replicas do not communicate.
          ReplicasOutOfSyncError: Some differ; the message names them. On all workers.
        """
        control.refuse(self, "assert_in_sync()")
        failure = ""
        try:
            super().assert_in_sync()  # type: ignore[safe-super]  # see the class
        except ReplicasOutOfSyncError as error:
            failure = str(error)
        digests = {
            number: (variable.name, worker_runtime.digest(variable))
            for number, variable in self._numbered_mirrored()
        }
        worker_runtime.compare(self._runtime, failure, digests)


def may_end(peers: WorkerRuntime, what: str, inputs: InputIterator) -> bool:
    """Whether the data of any worker may end; a collective."""
    answers = peers.exchange(what, f"{inputs.may_end:d}{inputs.fills:d}")
    fills = [answer[1] for answer in answers]
    if len(set(fills)) > 1:
        other = fills.index("0")
        raise DisagreementError(
            f"batches of worker {fills.index('1')} can have any number of examples, "
            f"those of worker {other} only one, so that an epoch would end at "
            "different steps; use drop_remainder=True on all workers, or on none"
        )
    return any(answer[0] == "1" for answer in answers)


class _UnevenInputs:
    """Ends ``next(inputs)`` after the same step on all workers, like ``run``.

    Workers exchange one string per step if the data of any of them may end.
    """

    def __init__(self, replicator: BetweenGraphReplicator) -> None:
        self._replicator = replicator
        self._may_end: bool | None = None

    def __call__(self, inputs: InputIterator, is_end: bool) -> bool:
        peers = self._replicator._runtime  # noqa: SLF001 (the class above)
        if self._may_end is None:
            what = "the first next() of an input iterator"
            self._may_end = may_end(peers, what, inputs)
        if not self._may_end:
            return is_end
        ends = peers.exchange("next() of an input iterator", "1" if is_end else "")
        # A worker at its end has batches without examples while others have examples.
        return all(ends) if inputs.fills else any(ends)
