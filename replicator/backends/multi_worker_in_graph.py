"""In-graph replication over several machines: one client, TensorFlow servers.

The left side of figure 1 of Buchlovsky et al. 2019. Worker 0 runs the training
program and also has replicas; every other worker runs ``python -m replicator.server``.
The step is linked into one graph over the devices of all workers, exactly as on one
machine; TensorFlow's runtime sends tensors between them.
"""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data
from replicator.backends import base, programs
from replicator.backends.multi_worker import MultiWorkerReplicator
from replicator.cluster import environment, membership
from replicator.cluster.liveness import DETECTION_TIMEOUT_SEC, FailureDetector
from replicator.core import devices
from replicator.core.validation import running
from replicator.engine import plan
from replicator.errors import RemoteInputError
from replicator.inputs.context import (
    InputContext,
    InputFn,
    InputReplicationMode,
    pipeline_contexts,
)
from replicator.inputs.iterator import InputIterator, counted, to_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import tensorflow as tf

    from replicator.async_training.connection import Connection
    from replicator.backends.programs import Call
    from replicator.cluster.configuration import ClusterConfig


class MultiWorkerInGraphReplicator(MultiWorkerReplicator):
    """Synchronous replicas on all workers, linked into one graph by one client.

    Create it before anything else: TensorFlow loses variables that exist when a process
    joins a cluster.

    Attributes:
      worker_devices: Device prefix of each worker.
    """

    pattern = "in_graph"

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        pattern: str | None = None,
        cluster: ClusterConfig | None = None,
        logical_devices_per_replica: int = 1,
        connect_timeout_sec: float = membership.CONNECT_TIMEOUT_SEC,
        failure_detection_timeout_sec: float = DETECTION_TIMEOUT_SEC,
        external_writes: str = "detect",
        without_communication: bool = False,
    ) -> None:
        """Connects to the servers.

        Args:
          num_replicas: Replicas of the whole job, a multiple of the number of workers;
            by default one per worker (of split replicas, as many as fit once).
          logical_devices_per_replica: Devices that one replica is split over, on one
            worker or, if they do not fit, on neighbouring ones.
          pattern: None or ``in_graph``.
          cluster: The processes; by default those of ``TF_CONFIG``.
          connect_timeout_sec: Longest wait for the servers to respond.
          failure_detection_timeout_sec: How long a worker may not respond before a call
            of this replicator raises ``WorkerLostError``; a worker that has exited is
            detected at once.
          external_writes: ``detect`` or ``never``; see ``InGraphReplicator``.
          without_communication: Makes a measuring control; see ``replicator.create``.

        Raises:
          ClusterConfigError: ``TF_CONFIG`` is wrong, this process is not worker 0, or
            variables exist already.
          PortInUseError: Another process listens at this one's address.
          UnreachableError: Servers do not respond.
          DeviceError: The replicas are not divisible by the workers, or GPUs are
            missing.
        """
        del pattern  # checked by __new__
        self._take_options("auto", external_writes, without_communication)
        config = environment.config_of(cluster)
        self._detector = FailureDetector(
            membership.connect(config, connect_timeout_sec),
            failure_detection_timeout_sec,
        )
        self.worker_devices = membership.worker_devices(config)
        count = devices.check_num_logical(logical_devices_per_replica)
        names = membership.replica_devices(
            self.worker_devices,
            num_replicas or max(config.num_workers // count, 1),
            count,
        )
        self.num_workers = config.num_workers
        self._cluster = config
        self._place(names)

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> InputIterator:
        """Makes pipelines on the workers whose replicas they feed.

        A SINGLE pipeline is on worker 0, which sends the batches.
        """
        fed = {self.worker_of(r) for r in range(self.num_replicas)}
        contexts = pipeline_contexts(mode, self.num_replicas, len(fed))
        share = self.num_replicas // len(contexts)
        workers = [self.worker_of(share * index) for index in range(len(contexts))]

        def checked_fn(context: InputContext) -> tf.data.Dataset:
            dataset = to_pipeline(input_fn(context))
            worker_id = workers[context.input_pipeline_id]
            calls = _tf_data.python_ops(dataset) if worker_id else ()
            if calls:
                raise RemoteInputError(
                    f"input pipeline {context.input_pipeline_id} belongs to worker "
                    f"{worker_id}, but it calls Python ({', '.join(calls[:3])}: "
                    "from_generator, py_function or numpy_function), which runs in the "
                    "client's process only; write it with TensorFlow ops, or use "
                    "InputReplicationMode.SINGLE: one pipeline on the client, whose "
                    "batches are sent to all workers"
                )
            return dataset

        sources = [f"{self.worker_devices[w]}/device:CPU:0" for w in workers]
        with self._detector.guard():
            inputs = InputIterator(
                checked_fn,
                contexts,
                self.num_replicas,
                devices=sources,
                prefetch=self._prefetch(num_prefetched, sources),
            )
            # Asks the workers, here where a lost one is named.
            _ = inputs.pads_last_step
            return inputs

    @property
    def num_programs(self) -> int:
        """One: the client's; the other workers serve."""
        return 1

    def worker_of(self, replica_id: int) -> int:
        """The worker of a replica's first device, which receives its inputs."""
        prefix = self.devices[replica_id].rpartition("/")[0]
        return self.worker_devices.index(prefix)

    def explain(self) -> str:
        """Describes the plans, the placement of replicas, and bytes sent per step."""
        workers = [self.worker_of(r) for r in range(self.num_replicas)]
        lines = [super().explain(), ""]
        for worker_id in range(self.num_workers):
            mine = [r for r, worker in enumerate(workers) if worker == worker_id]
            role = "client" if worker_id == 0 else "server"
            lines.append(f"{self._cluster.name_of(worker_id)}, {role}: replicas {mine}")
        for name, program in self._programs.items():
            if self.without_communication:
                lines.append(f"{name} sends nothing but inputs to other workers")
                continue
            sent = plan.sent(program.plans, self.topology, workers)
            parts = ", ".join(f"worker {w} {size} bytes" for w, size in sent.items())
            lines.append(f"{name}: collectives send to other workers per step: {parts}")
        return "\n".join(lines)

    def _run(self, call: Call) -> Any:
        with self._detector.guard():
            _tf_compat.wait_for_remote_ops()
            return super()._run(call)

    def _is_repairable(self, error: BaseException) -> bool:
        """Whether no worker was lost: its copies would be waited for."""
        return super()._is_repairable(error) and self._detector.explain(error) is None

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        with self._detector.guard(), super().consolidated_state(variables):
            yield

    def assert_in_sync(self) -> None:
        """Fetches and compares the copies; see ``Replicator.assert_in_sync``."""
        with self._detector.guard():
            super().assert_in_sync()

    def reduce(self, op: str, value: Any) -> Any:
        """Reduces values of all workers in this process; see ``Replicator.reduce``."""
        with self._detector.guard():
            return super().reduce(op, value)


# This process is the client; workers, which are in sync with nobody, and servers run
# ``python -m replicator.server``.


class ScheduledBackend(base.Replicator):
    """A base class that comes before the class that runs a worker's replicas.

    Attributes:
      connection: The cluster, TensorFlow's strategy and coordinator.
    """

    _wraps_alike = False
    _divides_last_step = False
    connection: Connection
    _share: int  # replicas of each worker

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of one worker: those whose gradients are averaged."""
        return self._share

    @property
    def num_programs(self) -> int:
        """One: the chief's; workers and parameter servers serve."""
        return 1

    @property
    def feeds_gpus(self) -> bool:
        """No: workers that may restart run the pipelines."""
        return False

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
          *more: Rejected; the error shows the equivalent of
            ``schedule(step, args=...)``.
          num_steps: Steps of each worker, in one dispatch.
          **others: Rejected as well.

        Raises:
          ReplicatorError: Misuse inside the step; errors of steps come from ``join``.
        """
        call = programs.check_call(
            self, "schedule", step_fn, inputs, num_steps, more, others
        )
        with running(self.replicator_id), counted(inputs, num_steps):
            self._schedule(call, keeps_results=False)

    @abc.abstractmethod
    def _schedule(self, call: Call, *, keeps_results: bool) -> Any:
        """Schedules steps; returns what has their results."""

    @abc.abstractmethod
    def join(self) -> None:
        """Waits until everything that was scheduled has run."""

    def assert_in_sync(self) -> None:
        """Never raises: there is one copy of every shared variable."""
