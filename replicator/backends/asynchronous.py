"""Asynchronous training with parameter servers (``async``).

The paper's ``MultiWorkerAsyncReplicator`` (Buchlovsky et al. 2019). Variables live on
parameter servers; each worker reads them, computes a gradient from its own batch and
updates them, at its own pace. The replicas of one worker are in sync with each other.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training import commit
from replicator.async_training import connection as connection_lib
from replicator.async_training.commit import CommitState, ServerOptimizer
from replicator.async_training.dispatch import (
    Assignment,
    Dispatcher,
    ServerInputIterator,
)
from replicator.async_training.steps import WorkerSteps
from replicator.async_training.table import Placement, ServerTable
from replicator.backends import programs
from replicator.backends.multi_worker_in_graph import ScheduledBackend
from replicator.core import context as context_lib
from replicator.core.step import PerReplica
from replicator.core.topology import make_topology, per_worker
from replicator.errors import ServerLostError
from replicator.inputs import iterator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.backends.programs import Call
    from replicator.cluster.configuration import ClusterConfig
    from replicator.inputs.context import InputFn, InputReplicationMode
    from replicator.optimizer.options import OptimizerOptions
    from replicator.variables.table import LocalState

RECOVERY_TIMEOUT_SEC = 600.0
_COUNTER = itertools.count()


class MultiWorkerAsyncReplicator(ScheduledBackend):
    """Replicas on workers that share variables on parameter servers.

    This process is the client (``chief`` in ``TF_CONFIG``); workers and servers run
    ``python -m replicator.server``. Create it before any variable.

    **No update is lost.** An update of ``wrap_optimizer`` runs in a locked section of
    the server, with gradients that have all arrived there, so workers do not overwrite
    each other. If a worker is lost in the middle of a step, the step is repeated when
    the worker is back, and skips the servers that have already applied its update.
    Other changes in a step (``assign_add``) are atomic, but are repeated with the step.

    Variables that a step overwrites (``assign``: batch-norm statistics, states of
    random generators) have a copy per replica; see ``replicator.async_training.table``.

    Attributes:
      num_replicas: Replicas of all workers.
    """

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        cluster: ClusterConfig | None = None,
        connect_timeout_sec: float = connection_lib.CONNECT_TIMEOUT_SEC,
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
        self.connection = connection_lib.connect(cluster, connect_timeout_sec)
        self.num_workers = self.connection.num_workers
        share = per_worker(
            self.num_workers if num_replicas is None else num_replicas,
            self.num_workers,
        )
        self.num_replicas = share * self.num_workers
        self._share = share
        devices = [
            connection_lib.worker_devices(worker, share)
            for worker in range(self.num_workers)
        ]
        self._topologies = [
            make_topology(
                [[device] for device in of_worker],
                num_replicas=share,
                first_replica_id=worker * share,
            )
            for worker, of_worker in enumerate(devices)
        ]
        num_servers = len(self.connection.cluster.addresses["ps"])
        self._placement = Placement(connection_lib.server_devices(num_servers))
        name = f"replicator_{next(_COUNTER)}"
        commit_states = [
            CommitState(device, self.num_workers, name)
            for device in self._placement.devices
        ]
        every = make_topology([[d] for names in devices for d in names])
        self._table = ServerTable(
            every, self.num_workers, self._placement, commit_states
        )
        self._programs = programs.ProgramCache(WorkerSteps.is_stale)
        self._dispatcher = Dispatcher(
            self.connection, commit_states, recovery_timeout_sec
        )

    @contextlib.contextmanager
    def context(self) -> Iterator[MultiWorkerAsyncReplicator]:
        """The scope for creating variables, on the parameter servers."""
        with super().context(), self._placement.scope():
            yield self

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> ServerInputIterator:
        """Makes pipelines on the workers; see ``Replicator.make_input_iterator``.

        ``ctx.num_replicas_in_sync`` is the number of replicas of one worker, so a
        global batch is the batch of one update.
        """
        iterator.refuse(num_prefetched, type(self).__name__)
        return ServerInputIterator(input_fn, mode, self.connection, self._share)

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
                [value for part in parts for value in part], owner=self.replicator_id
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

        step = self._programs.get(call.step_fn, call.signature, build)
        if self._dispatcher.is_idle:
            with self.connection.watch.guard():
                self._table.refresh()
        self._table.is_published = False
        inputs = call.inputs
        given = []
        for worker in range(self.num_workers):
            if isinstance(inputs, ServerInputIterator):
                source, spec = inputs.iterators[worker], inputs.source_spec
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
        options.refuse("async", "the async backend", refuses_fixed_loss_scale=True)
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

    def local_state(self) -> list[LocalState]:
        return self._table.local_state()

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        super().restore_local_state(saved)
        self._table.restore(saved)
