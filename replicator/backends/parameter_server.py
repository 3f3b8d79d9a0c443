"""``ParameterServerStrategy`` behind the contract (``tf_parameter_server``).

A peer for comparison, so it follows its documentation: variables in the strategy's
scope, datasets by ``create_per_worker_dataset``, steps scheduled on any free worker by
``ClusterCoordinator.schedule``, updates by the Keras optimizer. With asynchronous
workers these updates are not atomic: updates and their counts are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training import connection as connection_lib
from replicator.async_training.inputs import traced_dataset
from replicator.backends.strategy import StrategyReplicator
from replicator.backends.strategy_context import StrategyReplicaContext
from replicator.contract import programs
from replicator.errors import ReplicatorError
from replicator.inputs import prefetch
from replicator.inputs.context import InputContext, InputReplicationMode
from replicator.inputs.iterator import InputIterator, counted
from replicator.inputs.values import values_of
from replicator.optimizer.strategy_optimizer import StrategyOptimizer
from replicator.step import context, creation, loop
from replicator.step.keras_random import StepGenerator
from replicator.step.outputs import check_outputs
from replicator.step.per_replica import PerReplica
from replicator.step.traced_once import traced_once
from replicator.validation import user_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from replicator.cluster.configuration import ClusterConfig
    from replicator.optimizer.options import OptimizerOptions
    from replicator.optimizer.wrapper import ReplicatedOptimizer


class CoordinatorInputIterator(InputIterator):
    """The same pipeline on every worker: the coordinator does not number them."""

    stateless_reason = "its pipelines are on workers, which may be restarted"

    def __init__(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
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
            mode,
            replicator.num_replicas,
            contexts=[pipeline_context],
        )

    def _check(self, pipeline: Any) -> Any:
        return pipeline  # was checked when it was traced

    def _iterate(self, pipelines: Sequence[Any]) -> tuple[Any, ...]:
        strategy = self._replicator.strategy
        (pipeline,) = pipelines

        def dataset_fn() -> Any:
            return strategy.distribute_datasets_from_function(
                lambda _: pipeline.dataset()
            )

        coordinator = self._replicator.connection.coordinator
        return (iter(coordinator.create_per_worker_dataset(dataset_fn)),)

    def _get_next(self) -> Any:
        raise ReplicatorError(
            "next() and get_next() cannot read in this process, because the pipelines "
            "are on the workers; pass the iterator to run()"
        )


class ParameterServerReplicator(StrategyReplicator):
    """The stock asynchronous peer.

    Attributes:
      connection: The cluster, TensorFlow's strategy and coordinator.
    """

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
        connection_lib.check_stock(num_replicas, self._share, self.num_workers)

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of one worker."""
        return self._share

    @property
    def num_programs(self) -> int:
        """One: the chief's; workers and parameter servers serve."""
        return 1

    @property
    def feeds_gpus(self) -> bool:
        """No: workers that may restart run the pipelines."""
        return False

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> CoordinatorInputIterator:
        """Makes the pipeline on every worker; only ``PER_WORKER``."""
        prefetch.refuse(num_prefetched, type(self).__name__)
        return CoordinatorInputIterator(input_fn, mode, self)

    def schedule(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any = None,
        *more: Any,
        num_steps: int = 1,
        **others: Any,
    ) -> None:
        """Schedules as many dispatches as there are workers, on any free worker."""
        programs.check_caller()
        user_functions.check_no_more("schedule", more, others)
        programs.check_num_steps(num_steps, inputs)
        signature, _ = programs.split_inputs(inputs, self.num_replicas)
        with counted(inputs, num_steps):
            self._schedule(step_fn, inputs, signature, num_steps)

    def join(self) -> None:
        """Waits until everything that was scheduled has run."""
        self.connection.coordinator.join()

    def _run(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any,
        signature: Hashable,
        specs: list[Any],
        num_steps: int,
    ) -> Any:
        del specs  # the strategy takes them from its distributed inputs
        structure, values = self._schedule(step_fn, inputs, signature, num_steps)
        self.join()
        flat = [value for remote in values for value in remote.get()]
        count = len(flat) // self.num_workers
        leaves = iter(range(count // self._share))

        def gather(leaf: Any) -> PerReplica[Any]:
            if leaf is None:
                return PerReplica([None] * self.num_replicas)
            start = next(leaves) * self._share
            return PerReplica(
                [
                    flat[worker * count + start + replica]
                    for worker in range(self.num_workers)
                    for replica in range(self._share)
                ]
            )

        return tf.nest.map_structure(gather, structure[0])

    def _schedule(
        self, step_fn: Callable[..., Any], inputs: Any, signature: Any, num_steps: int
    ) -> tuple[list[Any], list[Any]]:
        function, structure = self._programs.get(
            step_fn, (signature, num_steps), lambda: self._build(step_fn, num_steps)
        )
        coordinator = self.connection.coordinator
        values = []
        with creation.forbidden_in_steps():
            for worker in range(self.num_workers):
                source: tuple[Any, ...] = ()
                if isinstance(inputs, InputIterator):
                    source = (inputs.iterators[0],)
                elif inputs is not None:
                    source = (self._values(inputs, worker),)
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
        replica_context = StrategyReplicaContext(self._share)
        local = self.strategy.experimental_local_results
        generator = StepGenerator()
        structure: list[Any] = [None]  # known once the step is traced

        def step(*batch: Any) -> Any:
            with context.enter(replica_context), generator.installed():
                return check_outputs(step_fn(*batch), step_fn)

        def function(*source: Any) -> list[tf.Tensor]:
            def one_step() -> list[tf.Tensor]:
                is_iterator = bool(source) and hasattr(source[0], "__next__")
                batch = (next(source[0]),) if is_iterator else source
                outputs = self.strategy.run(step, args=batch)
                structure[0] = outputs
                leaves = [x for x in tf.nest.flatten(outputs) if x is not None]
                return [value for leaf in leaves for value in local(leaf)]

            if num_steps == 1:
                return one_step()
            specs = self._output_specs(one_step)
            return loop.repeat(lambda _: one_step(), num_steps, specs)

        return traced_once(function, autograph=True), structure

    def _wrap_optimizer(
        self, optimizer: Any, options: OptimizerOptions
    ) -> ReplicatedOptimizer:
        options.check(optimizer)
        options.refuse(
            "tf_parameter_server",
            type(self.strategy).__name__,
            refuses_fixed_loss_scale=True,
        )
        return StrategyOptimizer(optimizer, num_replicas=self._share, options=options)

    def explain(self) -> str:
        """Names the strategy, which does not show its plan."""
        return (
            f"ParameterServerStrategy, {self.num_replicas} replicas on "
            f"{self.num_workers} workers: stock tf.distribute does not show its plan"
        )

    def assert_in_sync(self) -> None:
        """Never raises: there is one copy of every variable."""
