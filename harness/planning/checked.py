"""A request that can be carried out: checked against the catalogue and the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import pydantic

from harness import catalog
from harness.catalog import SYNTHETIC, BackendInfo, WorkloadInfo
from harness.command import peers
from harness.errors import PlanError
from harness.machine import allocation as placement
from harness.machine import environment
from harness.planning import defaults, design, estimate
from harness.planning.design import CheckedSweep
from harness.planning.estimate import PlannedCase
from results.records import program
from results.records.models import Allocator, ScalingMode
from results.records.record_base import MAX_REPLICAS
from results.store.study_store import first_complaint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.planning.request import SweepRequest


def divide(global_batch_size: int, num_replicas: int) -> int:
    per_replica, rest = divmod(global_batch_size, num_replicas)
    if rest == 0:
        return per_replica
    below = per_replica * num_replicas
    above = below + num_replicas
    sizes = f"{below} or {above}" if below else f"{above}"
    # Allowed counts, nearest first, whatever the global batch is.
    fewer = range(min(num_replicas - 1, global_batch_size), 0, -1)
    more = range(num_replicas + 1, min(global_batch_size, MAX_REPLICAS) + 1)
    nearest = [
        next((str(count) for count in counts if global_batch_size % count == 0), "")
        for counts in (fewer, more)
    ]
    raise PlanError(
        f"strong scaling: global batch {global_batch_size} is not divisible by"
        f" {num_replicas} replicas (remainder {rest}); use --global-batch-size {sizes},"
        f" or {' or '.join(filter(None, nearest))} replicas"
    )


def check_unit(
    info: WorkloadInfo, units: Mapping[str, int], per_replica: int, num_replicas: int
) -> None:
    unit = math.prod(units.values())
    if per_replica % unit:
        product = " times ".join(f"{name} {size}" for name, size in units.items())
        options = ", ".join(f"--option {name}=N" for name in units)
        below = per_replica // unit * unit
        sizes = f"{below} or {below + unit}" if below else f"{unit}"
        raise PlanError(
            f"{num_replicas} replica(s) of {per_replica} {info.example_unit} each:"
            f" a batch of {info.name} is a multiple of {product}; use"
            f" {sizes} {info.example_unit} per replica (--per-replica-batch-size, or"
            f" --global-batch-size {below * num_replicas or unit * num_replicas} with"
            f" strong scaling), or another {options}"
        )


DEFAULT_REPLICAS: Final = (1, 2, 4, 8)
"""The default replica counts; few, to keep the default sweep short."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    num_available_cores: int  # Logical CPUs that can be busy at once.
    num_gpus: int | None = None  # GPUs, or None when the plan does not use them.
    # Environment variables that can change the numbers.
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def choose_replicas(
    request: SweepRequest,
    machine: Machine,
    per_replica: int,
    unit: int,
    devices_per_replica: int,
) -> tuple[tuple[int, ...], list[str]]:
    """Returns the replica counts, ascending, and a note where they were chosen."""
    num_devices, name = machine.num_available_cores, "cores"
    if request.device == "gpu":
        num_devices, name = machine.num_gpus or 0, "GPUs"
        if not num_devices:
            raise PlanError(
                "--device gpu: this machine shows 0 GPUs (NVIDIA driver missing, or"
                " hidden by CUDA_VISIBLE_DEVICES); use --device cpu"
            )
        if request.replicas is not None and request.replicas[-1] > num_devices:
            raise PlanError(
                f"--replicas needs {request.replicas[-1]} GPUs, but this machine shows"
                f" {num_devices}; use at most --replicas {num_devices}"
            )
    if request.replicas is not None:
        return request.replicas, []
    limit, whole = max(1, num_devices // devices_per_replica), 0
    if ScalingMode.STRONG in request.modes:
        whole = request.global_batch_size or per_replica
    # A batch that has no whole number of units is refused later.
    whole = 0 if whole % unit else whole // unit
    replicas = tuple(n for n in DEFAULT_REPLICAS if n <= limit and whole % n == 0)
    listed = ",".join(map(str, replicas))
    return replicas, [f"replicas {listed}: default for {num_devices} {name}"]


def make_cases(
    backends: Sequence[BackendInfo],
    replicas: Sequence[int],
    sizes: dict[ScalingMode, int],
    modes: Sequence[ScalingMode],
) -> tuple[list[PlannedCase], list[str]]:
    """Returns the distinct cases, and a note for each backend that lacks some."""
    modes_of: dict[tuple[str, int, int], list[ScalingMode]] = {}
    notes = []
    for backend in backends:
        counts = [n for n in replicas if n <= (backend.max_replicas or n)]
        if not counts:
            raise PlanError(
                f"backend {backend.name!r} runs at most {backend.max_replicas}"
                f" replica(s), but the smallest of --replicas is {replicas[0]}; add 1"
                f" to --replicas, or leave {backend.name!r} out"
            )
        if len(counts) < len(replicas):
            planned = f"planned at {','.join(map(str, counts))} replica(s) only"
            most = f"it runs at most {backend.max_replicas}"
            notes.append(f"backend {backend.name}: {planned}; {most}")
        for num_replicas in counts:
            for mode in modes:
                size = sizes[mode]
                if mode is ScalingMode.STRONG:
                    size = divide(size, num_replicas)
                key = (backend.name, num_replicas, size)
                modes_of.setdefault(key, []).append(mode)
    return [PlannedCase(*key, tuple(modes)) for key, modes in modes_of.items()], notes


@contextlib.contextmanager
def refusing_bounds() -> Iterator[None]:
    """Builds a record, and reports a value that it cannot store."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise PlanError(
            f"the sweep cannot be recorded: {first_complaint(error)}; choose a value"
            " within these bounds"
        ) from error


@refusing_bounds()
def check(request: SweepRequest, machine: Machine) -> CheckedSweep:
    environment.image_of()  # raises where records could not hold it
    if request.program is None:
        info = catalog.workload(request.workload)
        backends = [catalog.backend(name) for name in request.backends]
    else:
        size = request.per_replica_batch_size
        if not size:  # of each replica at the baseline
            assert request.replicas is not None
            assert request.global_batch_size is not None
            size = divide(request.global_batch_size, request.replicas[0])
        info = request.program.workload(size)
        backends = request.program.backends
    has_own = request.device == "gpu" and "gpu" in {each.name for each in info.presets}
    preset_name = request.preset or ("gpu" if has_own else info.default_preset)
    preset = catalog.preset(info, preset_name)
    _check_batch(request)
    data = request.data or preset.data
    if request.program is None:
        data = catalog.check_data(info, data)
    options = {**preset.options, **request.options}
    if options:
        with catalog.refusing():
            info.make_config(preset_name, options)
    units = catalog.batch_units(info, preset_name, options)
    devices_per_replica = program.devices_per_replica(
        options, *(backend.name for backend in backends)
    )
    catalog.check_backends(info, options, backends)
    peers.check(
        info,
        backends,
        preset=preset_name,
        options=options,
        data=data,
        device=request.device,
        steps_per_sync=request.steps_per_sync,
    )
    per_replica = request.per_replica_batch_size or preset.per_replica_batch_size
    replicas, notes = choose_replicas(
        request, machine, per_replica, math.prod(units.values()), devices_per_replica
    )
    if devices_per_replica > 1 and request.device == "gpu":
        split = program.MESH if program.MESH in options else program.PIPELINE_STAGES
        raise PlanError(
            f"option {split}={options[split]} needs {devices_per_replica} GPUs for a"
            " replica, and --device gpu gives it one, so far; use --device cpu, or"
            " leave the option out"
        )
    placement.check_share(
        machine.variables,
        backends,
        replicas,
        request.device,
        is_own=request.program is not None,
    )
    sizes = {
        ScalingMode.WEAK: per_replica,
        ScalingMode.STRONG: request.global_batch_size or per_replica * replicas[0],
    }
    if info.syncs_because and request.steps_per_sync not in (None, 1):
        raise PlanError(
            f"--set steps-per-sync={request.steps_per_sync} with workload {info.name}:"
            f" {info.syncs_because}, so a step ends before the next one starts; use 1"
        )
    is_ahead = request.device == "gpu" and not info.syncs_because
    is_data_real = data != SYNTHETIC
    has_own_number = request.program is None or request.program.record.is_client
    common: dict[str, Any] = {
        "workload": info.name,
        "workload_version": info.version,
        "preset": preset_name,
        "data": data,
        "device": request.device,
        "cores_per_replica": placement.cores_per_replica(
            machine.num_available_cores, replicas, devices_per_replica
        ),
        "num_warmup_steps": request.steps[0] or preset.num_warmup_steps,
        "num_measured_steps": request.steps[1]
        or (preset.num_measured_steps if has_own_number else None),
        "steps_per_sync": request.steps_per_sync
        or (defaults.STEPS_PER_SYNC_ON_GPUS if is_ahead else 1),
        "is_evaluated": (
            is_data_real if request.is_evaluated is None else request.is_evaluated
        ),
        "options": options,
        # A peer is shown at its best: ``tf_mirrored`` gains up to a half when glibc
        # keeps what was freed (``docs/benchmarks``).
        "allocator": request.allocator or Allocator.KEEP,
        "variables": dict(machine.variables),
        "program": None if request.program is None else request.program.record,
    }
    repeats = design.choose_repeats(request, design.choose_order(request))
    cases, backend_notes = make_cases(backends, replicas, sizes, request.modes)
    design.check_number(len(cases) * repeats)
    for case in cases:
        check_unit(info, units, case.per_replica_batch_size, case.num_replicas)
    if request.program is None:
        with catalog.refusing():
            info.check_machine(
                preset_name,
                options,
                data=data,
                global_batch_size=max(case.global_batch_size for case in cases),
                num_workers=max(_num_workers(case, machine) for case in cases),
            )
    learning = estimate.choose_quality_runs(request, preset, cases, is_data_real)
    if request.is_quality_only and learning is None:
        raise PlanError(
            f"preset {preset_name!r} of {info.name} has no quality run with data"
            f" {data!r}, and nothing else was requested; give --budget, and --data"
            " that can be learned"
        )
    return CheckedSweep(
        request=request,
        info=info,
        backends=backends,
        num_cores=machine.num_available_cores,
        baseline_num_replicas=replicas[0],
        cases=tuple(cases),
        learning=learning,
        common=common,
        notes=(*notes, *([learning.note] if learning else ()), *backend_notes),
    )


def _num_workers(case: PlannedCase, machine: Machine) -> int:
    share = placement.replicas_per_worker(machine.variables)
    backend = catalog.backend(case.backend)
    processes = placement.processes_of(
        backend, case.num_replicas, replicas_per_worker=share
    )
    return processes.count("worker") or 1


def _check_batch(request: SweepRequest) -> None:
    if request.global_batch_size is not None and (
        ScalingMode.STRONG not in request.modes
    ):
        raise PlanError(
            f"--global-batch-size {request.global_batch_size} has no effect without"
            " strong scaling; add --mode strong, or use --per-replica-batch-size"
        )
