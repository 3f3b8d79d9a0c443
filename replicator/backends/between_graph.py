"""What backends share whose worker processes each run a program of their own.

Between-graph replication (Buchlovsky et al. 2019, figure 1): nobody sees all replicas,
so what concerns the whole job is a call that every worker makes, in the same order.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from replicator.cluster import exchange as worker_sync
from replicator.contract import base, output_reduction
from replicator.errors import ReplicasOutOfSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import tensorflow as tf

    from replicator.cluster.exchange import Peers
    from replicator.inputs.context import InputContext, InputReplicationMode
    from replicator.inputs.iterator import InputIterator


class BetweenGraphReplicator(base.Replicator):
    """Stands before the class that runs one worker's replicas."""

    @property
    @abc.abstractmethod
    def _peers(self) -> Peers:
        """The other workers, to exchange texts with."""

    @abc.abstractmethod
    def _numbered_mirrored(self) -> Iterable[tuple[int, Any]]:
        """Mirrored variables, each with a number that it has on all workers."""

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> InputIterator:
        """Makes the pipelines of this worker, whose ``next`` ends with all others'."""
        inputs = super()._make_input_iterator(input_fn, mode, num_prefetched)
        inputs.uneven_inputs = _UnevenInputs(self)
        return inputs

    def reduce(self, op: str, value: Any) -> Any:
        """Combines over all replicas of the job what ``run`` returned here.

        A collective: every worker calls it, in the same order, with values of the same
        structure. See ``Replicator.reduce``.
        """
        return output_reduction.reduce_over_workers(self, op, value)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Collects one string from every worker; see ``Replicator.gather_bytes``."""
        return worker_sync.gather_bytes(self._peers, payload)

    def assert_in_sync(self) -> None:
        """Compares mirrored variables bit by bit, here and over workers.

        A collective: every worker calls it.

        Raises:
          ReplicasOutOfSyncError: Some differ; the message names them. On all workers.
        """
        failure = ""
        try:
            super().assert_in_sync()  # type: ignore[safe-super]  # see the class
        except ReplicasOutOfSyncError as error:
            failure = str(error)
        digests = {
            number: (variable.name, worker_sync.digest(variable))
            for number, variable in self._numbered_mirrored()
        }
        worker_sync.compare(self._peers, failure, digests)


class _UnevenInputs:
    """Ends ``next(inputs)`` with the same step on all workers, as ``run`` ends.

    Workers exchange a word per step, where the data of any of them may end.
    """

    def __init__(self, replicator: BetweenGraphReplicator) -> None:
        self._replicator = replicator
        self._may_end: bool | None = None

    def __call__(self, inputs: InputIterator, is_end: bool) -> bool:
        peers = self._replicator._peers  # noqa: SLF001 (the class above)
        if self._may_end is None:
            what = "the first next() of an input iterator"
            self._may_end = any(peers.exchange(what, "1" if inputs.may_end else ""))
        if not self._may_end:
            return is_end
        return any(peers.exchange("next() of an input iterator", "1" if is_end else ""))
