"""Asynchronous training with parameter servers: ``async`` and ``tf_parameter_server``.

The paper's ``MultiWorkerAsyncReplicator`` (Buchlovsky et al. 2019): variables live on
parameter servers; each worker reads them, computes a gradient from its own batch and
updates them, at its own pace. The replicas of one worker are in sync with each other.
``ParameterServerStrategy`` is its stock peer. This process is the client; workers and
servers run ``python -m replicator.server``.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training import commit
from replicator.async_training.commit import CommitState, ServerOptimizer
from replicator.async_training.dispatch import (
    Assignment,
    Dispatcher,
    RemoteInputIterator,
    ServerInputIterator,
    traced_dataset,
)
from replicator.async_training.steps import Placement, ServerTable, WorkerSteps
from replicator.backends import base, programs
from replicator.backends.programs import Call
from replicator.backends.strategy import StrategyReplicator
from replicator.cluster import membership
from replicator.core import context as context_lib
from replicator.core.devices import make_topology, per_worker
from replicator.core.step import PerReplica, per_replica_nest, traced_once
from replicator.core.validation import holding
from replicator.errors import DeviceError, ReplicatorError, ServerLostError
from replicator.inputs.batches import values_of
from replicator.inputs.context import InputContext, InputFn, InputReplicationMode
from replicator.inputs.iterator import InputIterator, counted
from replicator.optimizer.other_libraries import StrategyOptimizer

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig
    from replicator.optimizer.options import OptimizerOptions

RECOVERY_TIMEOUT_SEC = 600.0
_COUNTER = itertools.count()


class ScheduledBackend(base.Replicator):
    """A base class that comes before the class that runs a worker's replicas."""

    connection: membership.Connection
    _share: int  # replicas of each worker
    _wraps_alike = _divides_last_step = False
    num_programs = 1  # The chief's; workers and parameter servers serve.
    feeds_gpus = False  # Workers that may restart run the pipelines.
    _no_prefetch_because = "whose workers create pipelines again"

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of one worker: those whose gradients are averaged."""
        return self._share

    def schedule(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any = None,
        *more: Any,
        num_steps: int = 1,
        **others: Any,
    ) -> None:
        """Schedules steps, as many on each worker, and does not wait for them.

        Args:
          step_fn: As in ``run``.
          inputs: As in ``run``.
          *more: Rejected, like ``**others``; the error shows the equivalent of
            ``schedule(step, args=...)``.
          num_steps: Steps of each worker, in one dispatch.
          **others: Rejected.

        Raises:
          ReplicatorError: Misuse inside the step; errors of steps come from ``join``.
        """
        call = Call(step_fn, inputs, num_steps).checked(self, "schedule", more, others)
        with holding("maker", self.replicator_id), counted(inputs, num_steps):
            self._schedule(call, keeps_results=False)

    @abc.abstractmethod
    def _schedule(self, call: Call, *, keeps_results: bool) -> Any:
        """Schedules steps; returns what has their results."""

    @abc.abstractmethod
    def join(self) -> None:
        """Waits until everything that was scheduled has run."""

    def _compare_copies(self) -> None:
        """Of every shared variable there is one copy."""


class MultiWorkerAsyncReplicator(ScheduledBackend):
    """Replicas on workers that share variables on parameter servers.

    This process is the ``chief`` of ``TF_CONFIG``. Create it before any variable.

    **No update is lost.** An update of ``wrap_optimizer`` runs in a locked section of
    the server, with gradients that have all arrived there, so workers do not overwrite
    each other. If a worker is lost in the middle of a step, the step is repeated when
    the worker is back, and skips the servers that have already applied its update.
    Other changes in a step (``assign_add``) are atomic, but are repeated with the step.

    Variables that a step overwrites (``assign``: batch-norm statistics, states of
    random generators) have a copy per replica; see ``replicator.async_training.steps``.
    """

    _table: ServerTable

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        cluster: ClusterConfig | None = None,
        connect_timeout_sec: float = membership.SERVERS_TIMEOUT_SEC,
        recovery_timeout_sec: float = RECOVERY_TIMEOUT_SEC,
    ) -> None:
        """Connects to the cluster, unless this process is already connected.

        Args:
          num_replicas: Replicas of all workers; None is one per worker.
          cluster: The processes; by default those of ``TF_CONFIG``.
          connect_timeout_sec: Longest wait for workers and servers to respond.
          recovery_timeout_sec: Longest wait for a lost worker to come back, and for
            progress in the first steps of a worker.

        Raises:
          ClusterConfigError: The cluster has no parameter servers or no workers.
          DeviceError: The replicas are not divisible by the workers.
          UnreachableError: Some processes do not respond; the message names them.
        """
        self.connection = membership.connect_to_servers(cluster, connect_timeout_sec)
        self.num_workers = count = self.connection.num_workers
        self._share = per_worker(count if num_replicas is None else num_replicas, count)
        self.num_replicas = self._share * count
        devices = [
            [[device] for device in membership.devices_of_worker(worker, self._share)]
            for worker in range(count)
        ]
        self._topologies = [
            make_topology(names, first_replica_id=worker * self._share)
            for worker, names in enumerate(devices)
        ]
        num_servers = len(self.connection.cluster.addresses["ps"])
        self._placement = Placement(membership.server_devices(num_servers))
        name = f"replicator_{next(_COUNTER)}"
        states = [
            CommitState(device, count, name) for device in self._placement.devices
        ]
        every = make_topology(list(itertools.chain(*devices)))
        self._table = ServerTable(every, count, self._placement, states)
        self._programs = programs.ProgramCache(WorkerSteps.is_stale)
        self._dispatcher = Dispatcher(self.connection, states, recovery_timeout_sec)

    @contextlib.contextmanager
    def context(self) -> Iterator[MultiWorkerAsyncReplicator]:
        """The scope for creating variables, on the parameter servers."""
        with super().context(), self._placement.scope():
            yield self

    def _make_input_iterator(self, asked: base.InputRequest) -> ServerInputIterator:
        """Makes pipelines on the workers, whose global batch is that of one update."""
        return ServerInputIterator(
            asked.input_fn, asked.mode, self.connection, self._share
        )

    def join(self) -> None:
        """Waits until all updates of all scheduled steps are applied.

        Raises:
          ServerLostError: A parameter server does not respond.
          WorkerLostError: A worker was lost and did not come back in time, or its first
            steps make no progress.
          tf.errors.OutOfRangeError: An input pipeline is at its end.
        """
        try:
            self._dispatcher.join()
        except ServerLostError:
            raise  # with what there would be to read
        except BaseException:
            self._publish()
            raise
        self._publish()

    def _publish(self) -> None:
        with self.connection.watch.guard():
            self._table.publish()

    def staleness(self) -> commit.Staleness:
        """Returns how stale the values were from which updates were computed."""
        with self.connection.watch.guard():
            counts_by_server = [
                commit_state.update_counts.numpy().tolist()
                for commit_state in self._table.commit_states
            ]
        return commit.summarize(counts_by_server)

    @property
    def num_redone(self) -> int:
        """Dispatches that were repeated because a worker was lost."""
        return self._dispatcher.num_redone

    def _run(self, call: Call) -> Any:
        """Runs ``num_steps`` steps on every worker and waits for them."""
        assignments = self._schedule(call, keeps_results=True)
        self.join()
        of_workers = [
            each.steps.programs[each.worker].pack(each.results) for each in assignments
        ]
        return tf.nest.map_structure(
            lambda *parts: PerReplica(
                list(itertools.chain(*parts)), owner=self.replicator_id
            ),
            *of_workers,
        )

    def _schedule(self, call: Call, *, keeps_results: bool) -> list[Assignment]:
        def build() -> WorkerSteps:
            with context_lib.created_in(self._placement.scope):
                return WorkerSteps(
                    call.step_fn,
                    call.specs,
                    topologies=self._topologies,
                    table=self._table,
                )

        step = self._programs.get(call, build)
        if self._dispatcher.is_idle:
            with self.connection.watch.guard():
                self._table.refresh()
        self._table.is_published = False
        given = []
        for worker in range(self.num_workers):
            if isinstance(call.inputs, ServerInputIterator):
                source, spec = call.inputs.iterators[worker], call.inputs.source_spec
            else:
                first = worker * self._share
                source = call.source(range(first, first + self._share))
                spec = source and tf.nest.map_structure(tf.type_spec_from_value, source)
            # Built in this thread.
            step.function(worker, spec, is_loop=call.num_steps > 1)
            assignment = Assignment(
                worker=worker,
                steps=step,
                num_steps=call.num_steps,
                source=source,
                spec=spec,
                keeps_results=keeps_results,
            )
            self._dispatcher.submit(assignment)
            given.append(assignment)
        return given

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        options.refuse("async", "the async backend")
        return ServerOptimizer(optimizer, options=options, placement=self._placement)

    def explain(self) -> str:
        """Describes the placement of variables and the transfers of a worker's step."""
        held = ", ".join(
            f"server {index}: {size} bytes"
            for index, size in enumerate(self._placement.num_bytes)
        )
        head = (
            f"{self.num_workers} workers with {self._share} replicas in sync each; "
            f"variables on {held}"
        )
        steps = [
            f"\n{name}, {self._share} replicas in sync\n{step.explain()}"
            for name, step in self._programs.items()
        ]
        return "\n".join([head, *steps])

    def check_alive(self) -> None:
        """Polls the parameter servers; see ``Replicator.check_alive``.

        Raises:
          ServerLostError: One has exited.
        """
        self.connection.watch.find_lost()
        self.connection.watch.check()


# The stock peer, which follows its documentation: variables in the strategy's scope,
# datasets by ``create_per_worker_dataset``, steps scheduled on any free worker by
# ``ClusterCoordinator.schedule``, updates by the Keras optimizer. With asynchronous
# workers these updates are not atomic: updates and their counts are lost.


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
        own = InputContext(num_replicas_in_sync=replicator.num_replicas_in_sync)
        super().__init__(
            lambda ctx: traced_dataset(input_fn, ctx),
            [own],
            replicator.num_replicas,
        )

    def _iterate(self, pipelines: Sequence[Any]) -> tuple[Any, ...]:
        (pipeline,) = pipelines

        def dataset_fn() -> Any:
            return self._replicator.strategy.distribute_datasets_from_function(
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
        connect_timeout_sec: float = membership.SERVERS_TIMEOUT_SEC,
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
        self.connection = membership.connect_to_servers(cluster, connect_timeout_sec)
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

    def _make_input_iterator(self, asked: base.InputRequest) -> InputIterator:
        return CoordinatorInputIterator(asked.input_fn, asked.mode, self)

    def join(self) -> None:
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
            call, lambda: self._build(call), call.num_steps
        )
        schedule, values = self.connection.coordinator.schedule, []
        with context_lib.forbidden_in_steps():
            for worker in range(self.num_workers):
                source: tuple[Any, ...] = ()
                if isinstance(call.inputs, InputIterator):
                    source = (call.inputs.iterators[0],)
                elif call.inputs is not None and self._share == 1:
                    source = tuple(values_of(call.inputs, [worker]))
                elif call.inputs is not None:
                    raise ReplicatorError(
                        "fixed values cannot be distributed to several replicas of a "
                        "worker with the stock strategy; pass an iterator from "
                        "make_input_iterator()"
                    )
                values.append(schedule(function, args=source))
        return structure, values

    def _build(self, call: Call) -> tuple[Any, list[Any]]:
        run_steps, structure = self._flat_steps(call)

        def function(*source: Any) -> list[tf.Tensor]:
            return run_steps(*source or [None])

        return traced_once(function, autograph=True), structure

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        options.check(optimizer)
        options.refuse("tf_parameter_server", type(self.strategy).__name__)
        return StrategyOptimizer(optimizer, options=options)
