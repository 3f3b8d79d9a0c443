"""``tf.distribute.MultiWorkerMirroredStrategy`` behind the replicator contract.

A peer for comparison, so it runs as its documentation shows; see ``strategy``. Its
replicas are its local devices: the GPUs of each worker, or one CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import signals
from replicator.backends.between_graph import BetweenGraphReplicator
from replicator.backends.strategy import StrategyReplicator
from replicator.cluster import environment, membership, port_filter
from replicator.cluster.workers import join as worker_join
from replicator.cluster.workers.runtime import WorkerRuntime
from replicator.cluster.workers.worker_state import WorkerState
from replicator.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.cluster.configuration import ClusterConfig


class MultiWorkerMirroredReplicator(BetweenGraphReplicator, StrategyReplicator):
    """The stock between-graph peer (``tf_multi_worker``).

    Attributes:
      cluster: The workers, and which of them this process is.
      num_workers: Worker processes.
      worker_id: Which of them this process is.
    """

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        cluster: ClusterConfig | None = None,
        timeout_sec: float = worker_join.DEFAULT_TIMEOUT_SEC,
    ) -> None:
        """Joins the cluster, together with all other workers.

        Args:
          num_replicas: Replicas of the whole job; by default, and at most, those that
            the strategy makes.
          cluster: The workers; None reads ``TF_CONFIG``.
          timeout_sec: Longest wait for another worker.

        Raises:
          ClusterError: The cluster cannot be joined; subclasses say why.
          DeviceError: The strategy makes another number of replicas.
        """
        self.cluster = environment.config_of(cluster)
        membership.claim_gpus(
            self.cluster, num_replicas and num_replicas // self.cluster.num_workers
        )
        strategy, state = membership.join_once(
            "stock between-graph", self.cluster, lambda: self._join(timeout_sec)
        )
        self._runtime = WorkerRuntime(state, timeout_sec)
        super().__init__(strategy)
        if num_replicas not in (None, self.num_replicas):
            raise DeviceError(
                f"num_replicas={num_replicas!r} does not match: the stock strategy "
                f"has {self.num_replicas} replicas on {self.cluster.num_workers} "
                "workers, one per GPU, or one per worker without GPUs; use that number"
            )
        self.num_workers = self.cluster.num_workers
        self.worker_id = self.cluster.worker_id
        self.first_replica_id = self.worker_id * self.num_local_replicas

    def _join(self, timeout_sec: float) -> tuple[Any, WorkerState]:
        worker_join.meet(self.cluster, timeout_sec)
        with port_filter.guarded(self.cluster), signals.kept():
            # Without a time limit of its own, which would leave threads; see
            # ``Deadline``.
            strategy = tf.distribute.MultiWorkerMirroredStrategy(
                cluster_resolver=membership.resolver_of(self.cluster)
            )
        return strategy, WorkerState(self.cluster)

    @property
    def num_local_replicas(self) -> int:
        """Replicas that this process runs."""
        return self.num_replicas // self.cluster.num_workers

    def _run(self, *args: Any) -> Any:
        *_, num_steps = args
        # One more, since the strategy may trace here.
        with self._runtime.guard("a step", num_steps + 1):
            return super()._run(*args)

    def _numbered_mirrored(self) -> Iterator[tuple[int, Any]]:
        for number, variable in enumerate(self._mirrored.values()):
            if variable.trainable:
                yield number, self._components(variable)[0]
