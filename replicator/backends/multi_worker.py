"""Synchronous replication over several machines: the two patterns of the paper.

Figure 1 of Buchlovsky et al. 2019: one program with all replicas, or one per worker.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import itertools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from replicator.backends import base, programs
from replicator.backends.in_graph import InGraphReplicator
from replicator.catalog import BACKENDS
from replicator.cluster import environment, membership, workers
from replicator.core import devices as devices_lib
from replicator.core.topology import per_worker
from replicator.core.validation import name_of
from replicator.errors import DisagreementError, ReplicasOutOfSyncError
from replicator.inputs.iterator import InputIterator
from replicator.variables import ownership, values
from replicator.variables.coherence import check_promise, consolidate
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from replicator.cluster.configuration import ClusterConfig
    from replicator.cluster.workers import WorkerRuntime
    from replicator.engine.program import Program
    from replicator.inputs.context import InputFn, InputReplicationMode


# The backend of each pattern; their classes import this module.
_BACKENDS = {"between_graph": "multi_worker", "in_graph": "multi_worker_in_graph"}


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
        if cls.pattern:
            if pattern not in (None, cls.pattern):
                raise ValueError(
                    f"pattern {pattern!r} is not that of {cls.__name__}, which is "
                    f"{cls.pattern!r}; use MultiWorkerReplicator(pattern={pattern!r})"
                )
            return super().__new__(cls)
        name = "between_graph" if pattern is None else pattern
        if name not in _BACKENDS:
            raise ValueError(
                f"pattern {pattern!r} is not one of {', '.join(map(repr, _BACKENDS))}"
            )
        return super().__new__(BACKENDS[_BACKENDS[name]].load())


class BetweenGraphReplicator(base.Replicator):
    """A base class that comes before the class that runs one worker's replicas.

    No process has all replicas, so operations on the whole job are calls that every
    worker makes in the same order.
    """

    _runtime: WorkerRuntime

    @abc.abstractmethod
    def _numbered_mirrored(self) -> Iterable[tuple[int, Any]]:
        """Mirrored variables, each with a number that is the same on all workers."""

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> InputIterator:
        """Makes this worker's pipelines; ``next`` ends on all workers together."""
        inputs = super()._make_input_iterator(input_fn, mode, num_prefetched)
        inputs.uneven_inputs = _ends_together(self._runtime)
        return inputs

    def reduce(self, op: str, value: Any) -> Any:
        """Reduces the return values of ``run`` over all replicas of the job.

        A collective: every worker calls it, in the same order, with values of the same
        structure. See ``Replicator.reduce``. A measuring control reduces the values of
        this process only: waiting for the others would be communication.
        """
        if self.without_communication:
            return super().reduce(op, value)
        return programs.reduce(self, op, value, self.run)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        text = base64.b64encode(payload).decode("ascii")
        texts = self._runtime.exchange("an exchange of bytes (a checkpoint)", text)
        return list(map(base64.b64decode, texts))

    def assert_in_sync(self) -> None:
        """Compares mirrored variables bit by bit, here and over workers.

        A collective: every worker calls it.

        Raises:
          MeasuringControlError: The replicas do not communicate.
          ReplicasOutOfSyncError: Some differ; the message names them. On all workers.
        """
        base.refuse(self, "assert_in_sync()")
        failure = ""
        try:
            super().assert_in_sync()  # type: ignore[safe-super]  # see the class
        except ReplicasOutOfSyncError as error:
            failure = str(error)
        workers.compare(self._runtime, failure, self._numbered_mirrored())


def may_end(peers: WorkerRuntime, what: str, inputs: InputIterator) -> bool:
    """Whether the data of any worker may end; a collective."""
    answers = peers.exchange(what, f"{inputs.may_end:d}{inputs.pads_last_step:d}")
    pads_last_step = [answer[1] for answer in answers]
    if len(set(pads_last_step)) > 1:
        other = pads_last_step.index("0")
        raise DisagreementError(
            f"batches of worker {pads_last_step.index('1')} can have any number of "
            f"examples, those of worker {other} only one, so that an epoch would end "
            "at different steps; use drop_remainder=True on all workers, or on none"
        )
    return any(answer[0] == "1" for answer in answers)


def _ends_together(peers: WorkerRuntime) -> Callable[[InputIterator, bool], bool]:
    """Ends ``next(inputs)`` after the same step on all workers, like ``run``.

    Workers exchange one string per step if the data of any of them may end.
    """
    is_finite: bool | None = None

    def is_over(inputs: InputIterator, is_end: bool) -> bool:
        nonlocal is_finite
        if is_finite is None:
            what = "the first next() of an input iterator"
            is_finite = may_end(peers, what, inputs)
        if not is_finite:
            return is_end
        ends = peers.exchange("next() of an input iterator", "1" if is_end else "")
        # A worker at its end has batches without examples while others have examples.
        return all(ends) if inputs.pads_last_step else any(ends)

    return is_over


class MultiWorkerBetweenGraphReplicator(BetweenGraphReplicator, MultiWorkerReplicator):
    """Replicas on the devices of several worker processes, one program in each.

    TensorFlow's collective ops connect the workers; the launcher gives them roles.
    Every worker runs the same program: the same calls of this object in the same order.
    Before a new step runs, workers check that their programs agree. Variables start
    with the values of worker 0; outside steps, replica-local variables read as the mean
    over all replicas of the job.

    Attributes:
      cluster: The workers, and which of them this process is.
      num_workers: Worker processes.
      worker_id: Index of this process.
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

        Args:
          num_replicas: Replicas of the whole job, of which each worker runs an equal
            share; by default one per worker.
          pattern: None or ``between_graph``.
          cluster: The workers; None finds them out (``environment.detect``).
          devices: Devices of this worker's replicas; see ``InGraphReplicator``.
          logical_devices_per_replica: Devices that one replica is split over.
          variable_placement: Within this worker; see ``InGraphReplicator``.
          external_writes: ``detect`` or ``never``; see ``InGraphReplicator``.
          timeout_sec: Longest wait for another worker: at start, in a step, in an
            exchange.
          heartbeat_timeout_sec: A worker without a heartbeat for this time is lost,
            whatever the others are doing.
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
        num_local = per_worker(num_replicas, self.num_workers)
        # Before the cluster is joined: TensorFlow then has its devices.
        if devices is None:
            num_devices = num_local * logical_devices_per_replica
            membership.claim_gpus(self.cluster, num_devices)
            if logical_devices_per_replica > 1:
                devices_lib.split_cpu_without_gpus(num_devices)
        self._runtime = workers.join_cluster(
            self.cluster,
            timeout_sec=timeout_sec,
            heartbeat_timeout_sec=heartbeat_timeout_sec,
        )
        self._place(
            devices_lib.resolve_logical(
                num_local, logical_devices_per_replica, devices
            ),
            variable_placement,
            num_replicas=num_replicas,
            first_replica_id=self.worker_id * num_local,
            num_programs=self.num_workers,
            program_id=self.worker_id,
        )
        self._group = self._runtime.group() if self.num_workers > 1 else None
        # Programs and variables may be freed, and others get their ids.
        self._equal: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = itertools.count()  # of variables
        self._agreed: weakref.WeakKeyDictionary[Program, set[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._started: weakref.WeakSet[Program] = weakref.WeakSet()
        self._endings: weakref.WeakKeyDictionary[InputIterator, bool] = (
            weakref.WeakKeyDictionary()
        )
        self._runtime.agree(
            "the creation of the replicator",
            {
                "num_replicas": num_replicas,
                "logical_devices_per_replica": logical_devices_per_replica,
            },
        )

    @property
    def num_local_replicas(self) -> int:
        """Replicas that this process runs."""
        return self.topology.num_local_replicas

    def build_step(
        self, step_fn: Callable[..., Any], specs: list[Any], num_steps: int = 1
    ) -> Program:
        """Builds a program; all workers compare theirs before any runs."""
        if self._group is None:
            return super().build_step(step_fn, specs, num_steps)
        # Collectives of different workers meet by keys that each draws for itself, so a
        # program that one of them did not get must give its keys back, or all later
        # ones would sum tensors that do not belong together.
        before = self._group.keys.value
        what = f"the first run of step {name_of(step_fn)!r}"
        try:
            try:
                program = self._make_program(step_fn, specs, self._group)
            except Exception as error:
                # The others must not wait for a worker that failed here; if all fail in
                # the same way, the job can continue.
                lines = str(error).strip().splitlines() or [""]
                failure = f"{type(error).__name__}: {lines[-1].strip()}"
                with contextlib.suppress(DisagreementError):
                    self._runtime.agree(what, {"failure": failure})
                raise
            plan = program.analysis.description()
            self._runtime.agree(what, {"failure": None, "num_steps": num_steps, **plan})
        except Exception:
            self._group.keys.value = before
            raise
        self._agreed.setdefault(program, set()).add(num_steps)
        self._broadcast_initial_values(program)
        return program

    def _broadcast_initial_values(self, program: Program) -> None:
        fresh = [
            entry.variable
            for entry in program.analysis.entries.values()
            if self._number(entry.variable) is None
            and not self._table.ownership.is_slot(entry.variable)
        ]
        if fresh and self._group is not None:
            with self._runtime.guard("the first exchange of variables"):
                values.broadcast_initial_values(fresh, self.topology, self._group)
            for variable in fresh:
                self._equal[id(variable)] = weakref.ref(variable), next(self._numbers)

    def _number(self, variable: Any) -> int | None:
        """Number of a variable, the same on all workers; None before its broadcast."""
        known, number = self._equal.get(id(variable), (None, None))
        return number if known is not None and known() is variable else None

    def _dispatch(
        self,
        program: Program,
        name: str,
        source: Any,
        num_steps: int = 1,
        inputs: Any = None,
    ) -> Any:
        if self._group is None:
            return super()._dispatch(program, name, source, num_steps)
        # The first run also compiles, so it gets additional time.
        is_first = program not in self._started
        self._started.add(program)
        # Not in every run: what could differ is compared once, before a collective
        # could hang, and a step then costs no message.
        if num_steps not in self._agreed[program]:
            what = f"a run of step {name!r}"
            self._runtime.agree(what, {"num_steps": num_steps})
            self._agreed[program].add(num_steps)
        is_finite = self._may_end(inputs)
        with self._runtime.guard(f"step {name!r}", num_steps + is_first):
            return self._transact(program, source, num_steps, may_end=is_finite)

    def _may_end(self, inputs: Any) -> bool:
        """Whether the data of any worker may end; exchanged once per iterator."""
        if not isinstance(inputs, InputIterator) or self.without_communication:
            return False
        if inputs not in self._endings:
            what = "the first run over an input iterator"
            self._endings[inputs] = may_end(self._runtime, what, inputs)
        return self._endings[inputs]

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        """Gathers state that workers own; see ``Replicator.consolidated_state``."""
        if self._group is None:
            with super().consolidated_state(variables):
                yield
            return
        check_promise(self._table, variables)
        group, owned = self._group, self._table.ownership
        with self._runtime.guard("the gathering of optimizer state"):
            consolidate(
                self._table.entries_of(variables),
                self.topology,
                lambda sums: values.add_up(sums, self.topology, group),
            )
            # One after the other, in the order of the variables, which is that of all
            # workers: a move is a collective.
            for slot in filter(owned.is_slot, variables):
                owner = owned.owner(slot)
                assert owner is not None
                source = owner.program_id
                value = values.move(slot, source, self.topology, group)
                writes = self.is_chief or self.also_writes
                if writes and owned.is_elsewhere(slot):
                    ownership.fill(slot, value)
        try:
            yield
        finally:
            owned.release(variables)

    def restored(self, variables: Sequence[Any]) -> None:
        """Frees state that other workers own; see ``Replicator.restored``."""
        super().restored(variables)
        self._table.ownership.release(variables)

    def _numbered_mirrored(self) -> Iterator[tuple[int, Any]]:
        for entry in self._table.entries():
            number = self._number(entry.variable)
            if entry.kind is Kind.MIRRORED and number is not None:
                yield number, entry.variable

    def explain(self) -> str:
        """Describes the plan of every traced step, with cross-worker communication."""
        place = (
            f"worker {self.worker_id} of {self.num_workers}, replicas "
            f"{self.first_replica_id} to "
            f"{self.first_replica_id + self.num_local_replicas - 1}"
        )
        return f"{place}\n{super().explain()}"
