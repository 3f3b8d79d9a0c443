"""``ParameterServerStrategy`` behind the contract (``tf_parameter_server``).

A peer for comparison, so it follows its documentation: variables in the strategy's
scope, datasets by ``create_per_worker_dataset``, steps scheduled on any free worker by
``ClusterCoordinator.schedule``, updates by the Keras optimizer. With asynchronous
workers these updates are not atomic: updates and their counts are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.async_training import connection as connection_lib
from replicator.async_training.dispatch import RemoteInputIterator, traced_dataset
from replicator.backends.multi_worker_in_graph import ScheduledBackend
from replicator.backends.strategy import StrategyReplicator
from replicator.core import context
from replicator.core.step import per_replica_nest, traced_once
from replicator.errors import DeviceError, ReplicatorError
from replicator.inputs import iterator
from replicator.inputs.context import (
    InputContext,
    InputFn,
    InputReplicationMode,
    values_of,
)
from replicator.inputs.iterator import InputIterator
from replicator.optimizer.other_libraries import StrategyOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import tensorflow as tf

    from replicator.backends.programs import Call
    from replicator.cluster.configuration import ClusterConfig
    from replicator.optimizer.options import OptimizerOptions


class CoordinatorInputIterator(RemoteInputIterator):
    """The same pipeline on every worker: the coordinator does not number them."""

    def __init__(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode,
        replicator: ParameterServerReplicator,
    ) -> None:
        if mode is not InputReplicationMode.PER_WORKER:
            raise ReplicatorError(
                f"{mode} does not work with ParameterServerStrategy: its coordinator "
                "runs the same pipeline on every worker; use PER_WORKER, or the async "
                "backend"
            )
        self._replicator = replicator
        pipeline_context = InputContext(
            num_replicas_in_sync=replicator.num_replicas_in_sync
        )
        super().__init__(
            lambda ctx: traced_dataset(input_fn, ctx),
            [pipeline_context],
            replicator.num_replicas,
        )

    def _iterate(self, pipelines: Sequence[Any]) -> tuple[Any, ...]:
        strategy = self._replicator.strategy
        (pipeline,) = pipelines

        def dataset_fn() -> Any:
            return strategy.distribute_datasets_from_function(
                lambda _: pipeline.dataset()
            )

        coordinator = self._replicator.connection.coordinator
        return (iter(coordinator.create_per_worker_dataset(dataset_fn)),)


class ParameterServerReplicator(ScheduledBackend, StrategyReplicator):
    """The stock asynchronous peer."""

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        cluster: ClusterConfig | None = None,
        connect_timeout_sec: float = connection_lib.CONNECT_TIMEOUT_SEC,
    ) -> None:
        """Connects to the cluster; see ``MultiWorkerAsyncReplicator``.

        Args:
          num_replicas: Replicas of all workers; the strategy has one per GPU of a
            worker, or one per worker without GPUs.
          cluster: The processes; by default those of ``TF_CONFIG``.
          connect_timeout_sec: Longest wait for workers and servers to respond.

        Raises:
          ClusterConfigError: The cluster has no parameter servers or no workers.
          DeviceError: The strategy has another number of replicas.
          UnreachableError: Some processes do not respond; the message names them.
        """
        self.connection = connection_lib.connect(cluster, connect_timeout_sec)
        super().__init__(self.connection.strategy)
        self.num_workers = self.connection.num_workers
        self._share = self.strategy.num_replicas_in_sync
        self.num_replicas = self._share * self.num_workers
        if num_replicas not in (None, self.num_replicas):
            raise DeviceError(
                f"num_replicas {num_replicas!r} does not work: ParameterServerStrategy "
                f"has {self._share} per worker (one per GPU, or one without) on "
                f"{self.num_workers} workers; use {self.num_replicas}"
            )

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> CoordinatorInputIterator:
        """Makes the pipeline on every worker; only ``PER_WORKER``."""
        iterator.refuse(num_prefetched, type(self).__name__)
        return CoordinatorInputIterator(input_fn, mode, self)

    def join(self) -> None:
        """Waits until everything that was scheduled has run."""
        self.connection.coordinator.join()

    def _run(self, call: Call) -> Any:
        structure, values = self._schedule(call, keeps_results=True)
        self.join()
        flat = [value for remote in values for value in remote.get()]
        return per_replica_nest(structure[0], flat, self.num_replicas)

    def _schedule(
        self, call: Call, *, keeps_results: bool
    ) -> tuple[list[Any], list[Any]]:
        """Schedules as many dispatches as there are workers, on any free worker."""
        del keeps_results  # the coordinator always does
        function, structure = self._programs.get(
            call.step_fn,
            (call.signature, call.num_steps),
            lambda: self._build(call.step_fn, call.num_steps),
        )
        coordinator = self.connection.coordinator
        values = []
        with context.forbidden_in_steps():
            for worker in range(self.num_workers):
                source: tuple[Any, ...] = ()
                if isinstance(call.inputs, InputIterator):
                    source = (call.inputs.iterators[0],)
                elif call.inputs is not None:
                    source = (self._values(call.inputs, worker),)
                values.append(coordinator.schedule(function, args=source))
        return structure, values

    def _values(self, inputs: Any, worker: int) -> Any:
        if self._share != 1:
            raise ReplicatorError(
                "fixed values cannot be distributed to several replicas of a worker "
                "with the stock strategy; pass an iterator from make_input_iterator()"
            )
        return values_of(inputs, [worker])[0]

    def _build(self, step_fn: Callable[..., Any], num_steps: int) -> Any:
        run_steps, structure = self._flat_steps(step_fn, num_steps)

        def function(*source: Any) -> list[tf.Tensor]:
            return run_steps(*source or [None])

        return traced_once(function, autograph=True), structure

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        options.check(optimizer)
        options.refuse(
            "tf_parameter_server",
            type(self.strategy).__name__,
            refuses_fixed_loss_scale=True,
        )
        return StrategyOptimizer(optimizer, options=options)
