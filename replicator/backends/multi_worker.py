"""Synchronous replication over several machines: the two patterns of the paper.

Figure 1 of Buchlovsky et al. 2019: one program with all replicas, or one per worker.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import tensorflow as tf

from replicator import errors
from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data
from replicator.backends import base, programs
from replicator.backends.in_graph import InGraphReplicator
from replicator.cluster import environment, membership, workers
from replicator.cluster.liveness import DETECTION_TIMEOUT_SEC, FailureDetector
from replicator.core import devices as devices_lib
from replicator.core.validation import name_of
from replicator.engine import plan as plan_lib
from replicator.inputs.context import InputContext, pipeline_contexts
from replicator.inputs.iterator import InputIterator, to_pipeline
from replicator.variables.coherence import consolidate
from replicator.variables.kinds import Kind, Workers
from replicator.variables.table import set_released

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig
    from replicator.cluster.workers import WorkerRuntime
    from replicator.engine.program import Program


class MultiWorkerReplicator(InGraphReplicator):
    """Replicas on the devices of several worker processes.

    ``pattern="between_graph"``, the default, makes a
    ``MultiWorkerBetweenGraphReplicator``: every worker runs the user's program.
    ``pattern="in_graph"`` makes a ``MultiWorkerInGraphReplicator``: one client runs it,
    and the other workers run ``python -m replicator.server``. Both are instances of
    this class; their constructors document the arguments.

    Attributes:
      pattern: ``between_graph`` or ``in_graph``.
      num_workers: Worker processes.
    """

    pattern: ClassVar[str] = ""
    num_workers: int

    def __new__(cls, *, pattern: str | None = None, **options: Any) -> Any:
        """Picks the class of a pattern of replication."""
        del options  # the constructor's
        if cls.pattern and pattern not in (None, cls.pattern):
            raise ValueError(
                f"pattern {pattern!r} is not that of {cls.__name__}, which is "
                f"{cls.pattern!r}; use MultiWorkerReplicator(pattern={pattern!r})"
            )
        kinds = MultiWorkerBetweenGraphReplicator, MultiWorkerInGraphReplicator
        known = {kind.pattern: kind for kind in kinds}
        name = "between_graph" if pattern is None else pattern
        if name not in known:
            raise ValueError(
                f"pattern {pattern!r} is not one of {', '.join(map(repr, known))}"
            )
        return super().__new__(cls if cls.pattern else known[name])


class BetweenGraphReplicator(base.Replicator):
    """A base class that comes before the class that runs one worker's replicas."""

    # No process has all replicas, so operations on the whole job are calls that every
    # worker makes in the same order.

    _runtime: WorkerRuntime

    @functools.cached_property
    def _endings(self) -> WeakKeyDictionary[InputIterator, bool]:
        return WeakKeyDictionary()

    @property
    def num_local_replicas(self) -> int:
        return self.num_replicas // self.num_workers

    @abc.abstractmethod
    def _numbered_mirrored(self) -> Iterable[tuple[int, Any]]:
        """Mirrored variables, each with a number that is the same on all workers."""

    def _make_input_iterator(self, asked: base.InputRequest) -> InputIterator:
        """Makes this worker's pipelines; ``next`` ends on all workers together."""
        inputs = super()._make_input_iterator(asked)
        inputs.uneven_inputs = self._is_over
        return inputs

    def _may_end(self, inputs: InputIterator, what: str) -> bool:
        """Whether the data of any worker may end; exchanged once per iterator."""
        if inputs not in self._endings:
            own = f"{inputs.may_end:d}{inputs.pads_last_step:d}"
            answers = self._runtime.exchange(what, own)
            pads_last_step = [answer[1] for answer in answers]
            if len(set(pads_last_step)) > 1:
                raise errors.DisagreementError(
                    f"batches of worker {pads_last_step.index('1')} can have any number"
                    f" of examples, those of worker {pads_last_step.index('0')} only "
                    "one, so that an epoch would end at different steps; use "
                    "drop_remainder=True on all workers, or on none"
                )
            self._endings[inputs] = any(answer[0] == "1" for answer in answers)
        return self._endings[inputs]

    def _is_over(self, inputs: InputIterator, is_end: bool) -> bool:
        """Ends ``next(inputs)`` after the same step on all workers, like ``run``."""
        if not self._may_end(inputs, "the first next() of an input iterator"):
            return is_end
        what = "next() of an input iterator"
        ends = self._runtime.exchange(what, "1" if is_end else "")
        # A worker at its end has batches without examples while others have examples.
        return all(ends) if inputs.pads_last_step else any(ends)

    def reduce(self, op: str, value: Any) -> Any:
        if self.without_communication:
            return super().reduce(op, value)
        return programs.reduce(self, op, value, self.run)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        text = base64.b64encode(payload).decode("ascii")
        texts = self._runtime.exchange("an exchange of bytes (a checkpoint)", text)
        return list(map(base64.b64decode, texts))

    def _compare_copies(self) -> None:
        failure = ""
        try:
            super()._compare_copies()
        except errors.ReplicasOutOfSyncError as error:
            failure = str(error)
        workers.compare(self._runtime, failure, self._numbered_mirrored())


class MultiWorkerBetweenGraphReplicator(BetweenGraphReplicator, MultiWorkerReplicator):
    """Replicas on the devices of several worker processes, one program in each.

    TensorFlow's collective ops connect the workers; the launcher gives them roles.
    Every worker runs the same program: the same calls of this object in the same order.
    Before a new step runs, workers check that their programs agree. Variables start
    with the values of worker 0; outside steps, replica-local variables read as the mean
    over all replicas of the job.

    Attributes:
      cluster: The workers, and which of them this process is.
    """

    pattern = "between_graph"

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        pattern: str | None = None,
        cluster: ClusterConfig | None = None,
        devices: Sequence[str] | Sequence[Sequence[str]] | None = None,
        logical_devices_per_replica: int = 1,
        variable_placement: str = "auto",
        timeout_sec: float = workers.DEFAULT_TIMEOUT_SEC,
        heartbeat_timeout_sec: float = workers.DEFAULT_HEARTBEAT_TIMEOUT_SEC,
        external_writes: str = "detect",
        without_communication: bool = False,
    ) -> None:
        """Joins the cluster, together with all other workers.

        Other arguments are as for ``InGraphReplicator``, of this worker's replicas.

        Args:
          num_replicas: Replicas of the whole job, of which each worker runs an equal
            share; by default one per worker.
          pattern: None or ``between_graph``.
          cluster: The workers; None finds them out (``environment.detect``).
          devices: Devices of this worker's replicas.
          logical_devices_per_replica: Devices that one replica is split over.
          variable_placement: Within this worker.
          timeout_sec: Longest wait for another worker: at start, in a step, in an
            exchange.
          heartbeat_timeout_sec: A worker without a heartbeat for this time is lost,
            whatever the others are doing.
          external_writes: ``detect`` or ``never``.
          without_communication: Makes a measuring control; see ``replicator.create``.

        Raises:
          ClusterError: The cluster cannot be joined; subclasses say why.
          DeviceError: Replicas are not divisible by workers, or devices are missing.
        """
        del pattern  # checked by __new__
        self._take_options(variable_placement, external_writes, without_communication)
        self.cluster = environment.config_of(cluster)
        self.num_workers = self.cluster.num_workers
        self.worker_id = self.cluster.worker_id
        if num_replicas is None:
            num_replicas = self.num_workers
        devices_lib.check_num_logical(logical_devices_per_replica)
        num_local = devices_lib.per_worker(num_replicas, self.num_workers)
        # Before the cluster is joined: TensorFlow then has its devices.
        if devices is None:
            num_devices = num_local * logical_devices_per_replica
            membership.claim_gpus(self.cluster, num_devices)
            has_gpus = tf.config.list_physical_devices("GPU")
            if logical_devices_per_replica > 1 and not has_gpus:
                devices_lib.split_cpu(num_devices)
        self._runtime = workers.join_cluster(
            self.cluster,
            timeout_sec=timeout_sec,
            heartbeat_timeout_sec=heartbeat_timeout_sec,
        )
        self._place(
            devices_lib.resolve_logical(
                num_local, logical_devices_per_replica, devices
            ),
            num_replicas=num_replicas,
            first_replica_id=self.worker_id * num_local,
            num_programs=self.num_workers,
            program_id=self.worker_id,
        )
        self._group = self._runtime.group() if self.num_workers > 1 else None
        # Variables that are equal on all workers, by the order in which they became it.
        self._equal: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._numbers = itertools.count()
        # By program that ran, the numbers of steps on which all workers have agreed.
        self._agreed: WeakKeyDictionary[Program, set[int]] = WeakKeyDictionary()
        self._runtime.agree(
            "the creation of the replicator",
            {
                "num_replicas": num_replicas,
                "logical_devices_per_replica": logical_devices_per_replica,
            },
        )

    def build_step(self, step_fn: Callable[..., Any], specs: Sequence[Any]) -> Program:
        """Builds a program; all workers compare theirs before any runs."""
        if self._group is None:
            return super().build_step(step_fn, specs)
        # Collectives of different workers meet by keys that each draws for itself, so a
        # program that one of them did not get must give its keys back, or all later
        # ones would sum tensors that do not belong together.
        before = self._group.keys.value
        what = f"the first run of step {name_of(step_fn)!r}"
        try:
            try:
                program = super().build_step(step_fn, specs)
            except Exception as error:
                # The others must not wait for a worker that failed here; if all fail in
                # the same way, the job can continue.
                lines = str(error).strip().splitlines() or [""]
                failure = f"{type(error).__name__}: {lines[-1].strip()}"
                with contextlib.suppress(errors.DisagreementError):
                    self._runtime.agree(what, {"failure": failure})
                raise
            plan = program.analysis.description()
            self._runtime.agree(what, {"failure": None, **plan})
        except Exception:
            self._group.keys.value = before
            raise
        equal = {id(variable) for variable in self._equal.values()}
        is_slot = self._table.ownership.is_slot
        used = [entry.variable for entry in program.analysis.entries.values()]
        fresh = [v for v in used if id(v) not in equal and not is_slot(v)]
        if fresh:
            with self._runtime.guard("the first exchange of variables"):
                workers = Workers(self.topology, self._group)
                workers.broadcast_initial_values(fresh)
            for variable in fresh:
                self._equal[next(self._numbers)] = variable
        return program

    def _limits(
        self, program: Program, call: programs.Call
    ) -> tuple[contextlib.AbstractContextManager[None], bool]:
        if self._group is None:
            return super()._limits(program, call)
        agreed, what = self._agreed.setdefault(program, set()), f"step {call.name!r}"
        # The first run also compiles, so it gets additional time.
        num_steps = call.num_steps + (not agreed)
        # Not in every run: what could differ is compared once, before a collective
        # could hang, and a step then costs no message.
        if call.num_steps not in agreed:
            self._runtime.agree(f"a run of {what}", {"num_steps": call.num_steps})
            agreed.add(call.num_steps)
        may_end = (
            isinstance(call.inputs, InputIterator)
            and not self.without_communication
            and self._may_end(call.inputs, "the first run over an input iterator")
        )
        return self._runtime.guard(what, num_steps), may_end

    def _consolidate(self, variables: Sequence[Any]) -> None:
        if self._group is None:
            super()._consolidate(variables)
            return
        owned = self._table.ownership
        workers = Workers(self.topology, self._group)
        with self._runtime.guard("the gathering of optimizer state"):
            consolidate(
                self._table.entries_of(variables),
                self.topology,
                workers.add_up,
            )
            # One after the other, in the order of the variables, which is that of all
            # workers: a move is a collective.
            for slot in filter(owned.is_slot, variables):
                owner = owned.owner(slot)
                assert owner is not None
                value = workers.move(slot, owner.program_id)
                writes = self.is_chief or self.also_writes
                if writes and owned.is_elsewhere(slot):
                    set_released(slot, value)

    def _numbered_mirrored(self) -> list[tuple[int, Any]]:
        entries = self._table.entries()
        mirrored = {id(e.variable) for e in entries if e.kind is Kind.MIRRORED}
        return [item for item in self._equal.items() if id(item[1]) in mirrored]

    def explain(self) -> str:
        """Describes the plan of every traced step, with cross-worker communication."""
        where = (
            f"worker {self.worker_id} of {self.num_workers}, replicas "
            f"{self.first_replica_id} to "
            f"{self.first_replica_id + self.num_local_replicas - 1}"
        )
        return f"{where}\n{super().explain()}"


class MultiWorkerInGraphReplicator(MultiWorkerReplicator):
    """Synchronous replicas on all workers, linked into one graph by one client.

    Worker 0 runs the training program and also has replicas; every other worker runs
    ``python -m replicator.server``, and TensorFlow's runtime sends tensors between
    them. Create it before anything else: TensorFlow loses variables that exist when a
    process joins a cluster.

    Attributes:
      worker_devices: Device prefix of each worker.
    """

    pattern = "in_graph"
    num_programs = 1  # The client's; the other workers serve.

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
          pattern: None or ``in_graph``.
          cluster: The processes; by default those of ``TF_CONFIG``.
          logical_devices_per_replica: Devices that one replica is split over, on one
            worker or, if they do not fit, on neighbouring ones.
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
        count = devices_lib.check_num_logical(logical_devices_per_replica)
        names = membership.replica_devices(
            self.worker_devices,
            num_replicas or max(config.num_workers // count, 1),
            count,
        )
        self.num_workers = config.num_workers
        self._cluster = config
        self._place(names)

    def _make_input_iterator(self, asked: base.InputRequest) -> InputIterator:
        """Makes pipelines on the workers that they feed, a SINGLE one on worker 0."""
        fed = {self.worker_of(r) for r in range(self.num_replicas)}
        contexts = pipeline_contexts(asked.mode, self.num_replicas, len(fed))
        share = self.num_replicas // len(contexts)
        workers = [self.worker_of(share * index) for index in range(len(contexts))]

        def checked_fn(context: InputContext) -> tf.data.Dataset:
            dataset = to_pipeline(asked.input_fn(context))
            worker_id = workers[context.input_pipeline_id]
            calls = _tf_data.python_ops(dataset) if worker_id else ()
            if calls:
                raise errors.RemoteInputError(
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
                num_prefetched=asked.num_prefetched,
                targets=self._input_devices() if asked.num_prefetched else (),
            )
            # Asks the workers, here where a lost one is named.
            _ = inputs.pads_last_step
            return inputs

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
            sent = plan_lib.sent(program.plans, self.topology, workers)
            parts = ", ".join(f"worker {w} {size} bytes" for w, size in sent.items())
            lines.append(f"{name}: collectives send to other workers per step: {parts}")
        return "\n".join(lines)

    def _run(self, call: programs.Call) -> Any:
        _tf_compat.wait_for_remote_ops()
        return super()._run(call)

    def _guard(self) -> contextlib.AbstractContextManager[None]:
        return self._detector.guard()

    def _is_repairable(self, error: BaseException) -> bool:
        """Whether no worker was lost: its copies would be waited for."""
        return super()._is_repairable(error) and self._detector.explain(error) is None
