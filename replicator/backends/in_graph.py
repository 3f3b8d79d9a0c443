"""Synchronous in-graph replication: all replicas in one graph of one process.

The pattern of the paper's ``MultiGpuReplicator`` (Buchlovsky et al. 2019, figure 1):
the step is traced once, its graph is copied per replica, and the collectives are linked
across the copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.backends import base, programs, sharding, summary
from replicator.backends.single import SingleDeviceReplicator
from replicator.catalog import GRADIENTS, PARAMETERS, entry_of
from replicator.core import context as context_lib
from replicator.core import devices as devices_lib
from replicator.core.step import traced_once
from replicator.core.validation import format_value, is_one_of
from replicator.engine import plan
from replicator.engine.program import Program, TimeLimit
from replicator.errors import DeviceError
from replicator.optimizer import other_libraries
from replicator.optimizer.wrapper import LocalOptimizer, ReplicatedOptimizer
from replicator.variables import coherence
from replicator.variables.table import Entry, VariableTable

if TYPE_CHECKING:
    from replicator.optimizer.options import OptimizerOptions

DEFAULT_TIMEOUT_SEC = 600.0
_PLACEMENTS = ("auto", "shared", "mirrored")


class InGraphReplicator(base.ProgramReplicator):
    """Replicas on local devices of one process, linked into one graph.

    Variables are ordinary ones. If all devices share host memory (CPUs), mirrored
    variables exist once and each update is computed once; otherwise every device has a
    copy. Batch-norm statistics and other replica-local state always have a copy per
    replica; outside steps the user's variable reads as their mean.

    Attributes:
      topology: The placement of the replicas.
      devices: Full device name of each replica (of its logical device 0).
      variable_placement: ``shared`` or ``mirrored``.
    """

    _one_replica = SingleDeviceReplicator
    _table: VariableTable
    _group: devices_lib.Group | None = None  # Of the workers that run a program each.

    def __init__(
        self,
        *,
        num_replicas: int,
        devices: Sequence[str] | Sequence[Sequence[str]] | None = None,
        logical_devices_per_replica: int = 1,
        variable_placement: str = "auto",
        external_writes: str = "detect",
        timeout_sec: float = DEFAULT_TIMEOUT_SEC,
        without_communication: bool = False,
    ) -> None:
        """Places the replicas.

        Args:
          num_replicas: Replicas of the job.
          devices: One per replica, or by replica those that it is split over; by
            default GPUs if there are any, else the CPU.
          logical_devices_per_replica: Devices that one replica is split over.
          variable_placement: ``shared``, ``mirrored``, or ``auto``: shared where all
            devices share memory.
          external_writes: What is assigned outside ``run`` reaches all copies; this is
            about writes that no method of a variable makes, such as those of raw ops
            and of your own ``tf.function``s. ``detect`` finds the changes that they
            made before each run: of variables whose handle they took, or that were not
            made in ``context()``, and then reads these twice and waits for the run
            before. ``never`` promises that there are none, except before
            ``refresh_variables()``. Such writes then reach replica 0 alone, which
            ``assert_in_sync()`` and every checkpoint report.
          timeout_sec: Longest duration of a step whose replicas meet on GPUs.
          without_communication: Makes a measuring control; see ``replicator.create``.

        Raises:
          DeviceError: A device does not exist, there are too few, or they do not share
            memory.
          ValueError: An option has a value that it cannot have.
        """
        self._take_options(variable_placement, external_writes, without_communication)
        names = devices_lib.resolve_logical(
            num_replicas, logical_devices_per_replica, devices
        )
        self._place(names, timeout_sec)

    def _take_options(
        self,
        variable_placement: str,
        external_writes: str,
        without_communication: bool,
    ) -> None:
        self.without_communication = without_communication
        self._detects_writes = coherence.are_detected(external_writes)
        if not is_one_of(variable_placement, _PLACEMENTS):
            raise ValueError(
                f"variable_placement {format_value(variable_placement)} is not one of "
                f"{', '.join(map(repr, _PLACEMENTS))}"
            )
        self.variable_placement = variable_placement

    def _place(
        self,
        names: Sequence[Sequence[str]],
        timeout_sec: float = DEFAULT_TIMEOUT_SEC,
        **part_of_job: int,
    ) -> None:
        self._limit = TimeLimit(timeout_sec)
        self.topology = topology = devices_lib.make_topology(
            names,
            is_mirrored=self.variable_placement == "mirrored",
            has_virtual_gpus=devices_lib.have_virtual_gpus([n[0] for n in names]),
            **part_of_job,
        )
        self.devices = list(topology.replica_devices)
        if self.variable_placement == "shared" and not topology.is_shared:
            raise DeviceError(
                f"variable_placement='shared' needs devices that share memory, but "
                f"{self.devices} do not; use 'mirrored' or 'auto'"
            )
        self.num_replicas = topology.num_replicas
        self.first_replica_id = topology.first_replica_id
        self.logical_devices_per_replica = topology.num_logical_devices
        self._places = topology.devices[0]
        self.variable_placement = "shared" if topology.is_shared else "mirrored"
        self._table = VariableTable(topology, detects_writes=self._detects_writes)
        self._programs = programs.ProgramCache(Program.is_stale)

    @contextlib.contextmanager
    def context(self) -> Iterator[InGraphReplicator]:
        """The scope for creating variables, by default on replica 0's device."""

        def create(next_creator: Callable[..., Any], **options: Any) -> Any:
            variable = next_creator(**options)
            self._table.watch(variable)
            return variable

        scope = tf.variable_creator_scope(create)
        with super().context(), scope, tf.device(self.devices[0]):
            yield self

    def build_step(self, step_fn: Callable[..., Any], specs: Sequence[Any]) -> Program:
        with context_lib.created_in(self.context, self._table.watch):
            program = Program(
                step_fn,
                specs,
                self.topology,
                self._table,
                self._group,
                without_communication=self.without_communication,
            )
        _tf_compat.wait_for_remote_ops()  # copies of variables may be new
        return program

    def _dispatch(self, program: Program, call: programs.Call, source: Any) -> Any:
        """Runs steps; where they fail, variables are coherent again."""
        limit, may_end = self._limits(program, call)
        with limit:
            try:
                return program.run(source, call.num_steps, may_end=may_end)
            except BaseException as error:
                if self._is_repairable(error):
                    program.repair(error, call.num_steps, may_end=may_end)
                raise

    def _limits(
        self, program: Program, call: programs.Call
    ) -> tuple[context_lib.Scope, bool]:
        """What limits the time of steps; whether data of another process may end."""
        if not program.is_limited:
            return contextlib.nullcontext(), False
        # One step more than there are: the first run also compiles.
        return self._limit.guard(f"step {call.name!r}", call.num_steps + 1), False

    def _is_repairable(self, _error: BaseException) -> bool:
        """Whether the devices of all copies still respond after an error."""
        return not self._limit.is_over

    def _input_devices(self) -> Sequence[str]:
        return self.devices

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        with self._guard():
            coherence.check_promise(self._table, variables)
            self._consolidate(variables)
            try:
                yield
            finally:
                self._table.ownership.release(variables)

    def _consolidate(self, variables: Sequence[Any]) -> None:
        coherence.consolidate(self._table.entries_of(variables), self.topology)

    def refresh_variables(self) -> None:
        """Gives all replicas what was written to variables outside ``run``.

        Needed with ``external_writes="never"``, after writes that no method of a
        variable makes; otherwise every run begins with it.
        """
        table = self._table
        copies = coherence.Coherence(table.entries(), self.topology, table.resets)
        traced_once(copies.reset)()
        _tf_compat.wait_for_remote_ops()

    def restored(self, variables: Sequence[Any]) -> None:
        self.refresh_variables()
        self._table.ownership.release(variables)

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        """Wraps; with a sharded update over workers, every call must update."""
        other: Any = other_libraries.wrapped(optimizer, options)
        if other is not None:
            return other
        options.check(optimizer)
        label, reason = type(self).__name__, self._why_not_parameters()
        if options.level == PARAMETERS and reason:
            options.refuse_option("sharded_update", reason, label, GRADIENTS)
        options.refuse(entry_of(type(self)).name, label)
        if options.level is not None and self.topology.num_programs > 1:
            options.refuse_over_workers(label)
        kind = LocalOptimizer if self.without_communication else ReplicatedOptimizer
        return kind(
            optimizer,
            options=options,
            ownership=None if options.level is None else self._table.ownership,
            accumulates_per_replica=(
                self.topology.communicates and not options.shards_gradients
            ),
        )

    def _why_not_parameters(self) -> str:
        """Why no owner can have a variable alone, or nothing."""
        if self.topology.num_logical_devices > 1:
            return sharding.OF_SPLIT_REPLICAS
        return entry_of(type(self)).lacks.get("sharded_parameters", "")

    def _described(self, device_memory: int | None) -> list[str]:
        local = summary.local_variables(self._entries_here())
        held = [sharding.Held(*each) for each in self._table.ownership.held()]
        reason = self._why_not_parameters()
        return [
            *summary.replicas_of(self.topology),
            *summary.by_device(self._sizes()),
            *([local] if local else []),
            *sharding.table(held, device_memory, self._activations(), reason),
        ]

    def explain(self) -> str:
        """Describes every traced step: its collectives and replica-local variables."""
        steps = self._traced_steps()
        if not steps:
            return "no step has been traced yet; call run() first"
        where = f"{self.num_replicas} replicas, {self.variable_placement} variables"
        parts = [
            [
                f"{name}, {where}",
                plan.explain(program.plans, self.topology),
                summary.local_variables(program.analysis.entries.values()),
                *program.notes,
            ]
            for name, program in steps
        ]
        parts.append([self._table.ownership.explain()])
        described = ["\n".join(filter(None, part)) for part in parts]
        note = f"{base.EXPLANATION}\n" if self.without_communication else ""
        return note + "\n\n".join(filter(None, described))

    def counts(self) -> dict[str, int]:
        """Counts collectives, their bytes, and those of variables, as planned."""
        plans = [each for _, program in self._traced_steps() for each in program.plans]
        planned = [each for each in plans if each.collective.num_replicas > 1]
        buckets = [bucket for each in planned for bucket in each.buckets]
        kept = sum(self._activations())
        return {
            "collectives": len(buckets),
            "collective_bytes": sum(bucket.num_bytes for bucket in buckets),
            "variable_bytes": self._sizes().total(),
            **({"activation_bytes": kept} if kept else {}),
        }

    def _activations(self) -> tuple[int, ...]:
        """Bytes for a backward pass, by device of a replica, of the step with most."""
        steps = (program.analysis.traced for _, program in self._traced_steps())
        return max((traced.activations for traced in steps), key=sum, default=())

    def _traced_steps(self) -> list[tuple[str, Program]]:
        """Name and program of every traced step, those of a strategy included."""
        strategy: Any = self._strategy
        own = self._programs.items()
        return own if strategy is None else [*own, *strategy.programs()]

    def _entries_here(self) -> list[Entry]:
        """The variables of which this process has copies."""
        owners = self._table.ownership
        return [e for e in self._table.entries() if not owners.is_elsewhere(e.variable)]

    def _sizes(self) -> summary.Sizes:
        return summary.sizes_of_entries(self._entries_here())

    def _compare_copies(self) -> None:
        coherence.check_in_sync(self._table)


class MultiGpuReplicator(InGraphReplicator):
    """The paper's name for replicas on the GPUs of one machine.

    Without GPUs it runs on the CPU, so that the same program works on a laptop.
    """

    def __init__(self, num_gpus: int | None = None, **options: Any) -> None:
        gpus = tf.config.list_physical_devices("GPU")
        if num_gpus is None:
            num_gpus = max(len(gpus), 1)
        super().__init__(num_replicas=num_gpus, **options)
