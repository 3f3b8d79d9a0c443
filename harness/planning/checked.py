"""A request that can be carried out: checked against the catalogue and the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pydantic

from harness import catalog
from harness.catalog import SYNTHETIC
from harness.command import peers
from harness.errors import PlanError
from harness.machine import environment
from harness.placement import allocation as placement
from harness.placement import processes
from harness.planning import batches, design, estimate, plan_count, settings
from harness.planning import cases as cases_module
from results.records import program
from results.records.models import ScalingMode
from results.store.record_file import first_complaint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.planning.cases import Machine
    from harness.planning.estimate import PlannedCase, QualityRuns
    from harness.planning.request import SweepRequest


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CheckedSweep:
    """A request that can be carried out on a machine, in whatever order."""

    request: SweepRequest  # The request.
    num_cores: int  # Available logical CPUs of the machine.
    baseline_num_replicas: int  # The smallest replica count.
    cases: tuple[PlannedCase, ...]  # The distinct cases.
    learning: QualityRuns | None  # Its quality runs; None without any.
    common: Mapping[str, Any]  # Fields of all specs.
    notes: tuple[str, ...]  # Defaults that were chosen for the user, one line each.


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
    """Checks a request against the catalogue and the machine, and finds its cases."""
    environment.image_of()  # raises where records could not hold it
    if request.program is None:
        info = catalog.workload(request.workload)
        backends = [catalog.backend(name) for name in request.backends]
    else:
        size = request.per_replica_batch_size or _smallest_share(request)
        info = request.program.workload(size)
        backends = [request.program.backend]
    preset_name = request.preset or _default_preset(info, request.device)
    preset = catalog.preset(info, preset_name)
    _check_counts(request)
    data = request.data or preset.data
    if request.program is None:
        data = catalog.check_data(info, data)
    options = {**preset.options, **request.options}
    if options:
        catalog.check_options(info, preset_name, options)
    units = catalog.batch_units(info, preset_name, options)
    devices_per_replica = program.devices_per_replica(options)
    catalog.check_backends(info, options, backends)
    peers.check(
        info,
        backends,
        preset=preset_name,
        options=options,
        data=data,
        device=request.device,
        steps_per_sync=request.settings.get("steps_per_sync"),
    )
    replicas, notes = cases_module.choose_replicas(
        request, machine, preset, math.prod(units.values()), devices_per_replica
    )
    catalog.check_devices(options, request.device)
    processes.check_share(
        machine.variables,
        backends,
        replicas,
        request.device,
        is_own=request.program is not None,
    )
    sizes = cases_module.batch_sizes(request, preset, replicas[0])
    is_data_real = data != SYNTHETIC
    common: dict[str, Any] = {
        "workload": info.name,
        "workload_version": info.version,
        "preset": preset_name,
        "data": data,
        "device": request.device,
        "cores_per_replica": placement.cores_per_replica(
            machine.num_available_cores, replicas, devices_per_replica
        ),
        "num_warmup_steps": request.num_warmup_steps or preset.num_warmup_steps,
        "num_measured_steps": (
            preset.num_measured_steps
            if request.num_measured_steps is None
            and (request.program is None or request.program.record.is_client)
            else request.num_measured_steps
        ),
        **settings.choose(request.settings, info, request.device),
        "is_evaluated": (
            is_data_real if request.is_evaluated is None else request.is_evaluated
        ),
        "options": options,
        "allocator": design.choose_allocator(request),
        "variables": dict(machine.variables),
        "program": None if request.program is None else request.program.record,
    }
    repeats = design.choose_repeats(request, design.choose_order(request))
    plan_count.check(
        plan_count.num_cases(backends, replicas, sizes, request.modes) * repeats
    )
    cases, backend_notes = cases_module.make_cases(
        backends, replicas, sizes, request.modes
    )
    for case in cases:
        batches.check_unit(info, units, case.per_replica_batch_size, case.num_replicas)
    if request.program is None:
        catalog.check_machine(
            info,
            preset_name,
            options,
            data=data,
            global_batch_size=max(
                case.num_replicas * case.per_replica_batch_size for case in cases
            ),
            num_workers=_largest_num_workers(cases, machine),
        )
    learning = estimate.choose_quality_runs(
        request, preset, cases, is_data_real=is_data_real
    )
    if request.is_quality_only and learning is None:
        raise PlanError(
            f"preset {preset_name!r} of {info.name} has no quality run with data"
            f" {data!r}, and nothing else was requested; give --budget, and --data"
            " that can be learned"
        )
    return CheckedSweep(
        request=request,
        num_cores=machine.num_available_cores,
        baseline_num_replicas=replicas[0],
        cases=tuple(cases),
        learning=learning,
        common=common,
        notes=(*notes, *([learning.note] if learning else ()), *backend_notes),
    )


def _smallest_share(request: SweepRequest) -> int:
    """Returns the batch of each replica at the baseline, from the global batch."""
    assert request.replicas is not None
    assert request.global_batch_size is not None
    return batches.divide(request.global_batch_size, request.replicas[0])


def _largest_num_workers(cases: Sequence[PlannedCase], machine: Machine) -> int:
    """Returns the most processes that the replicas of a trial are spread over."""
    share = processes.replicas_per_worker(machine.variables)
    return max(
        processes.processes_of(
            catalog.backend(case.backend), case.num_replicas, replicas_per_worker=share
        ).count("worker")
        or 1
        for case in cases
    )


def _default_preset(info: catalog.WorkloadInfo, device: str) -> str:
    names = {preset.name for preset in info.presets}
    return "gpu" if device == "gpu" and "gpu" in names else info.default_preset


def _check_counts(request: SweepRequest) -> None:
    if not request.backends:
        raise PlanError(
            f"no backend was requested; known are {', '.join(catalog.BACKENDS)}"
        )
    if not request.modes:
        raise PlanError("no scaling mode was requested; allowed are weak, strong")
    if request.global_batch_size is not None and (
        ScalingMode.STRONG not in request.modes
    ):
        raise PlanError(
            f"--global-batch-size {request.global_batch_size} has no effect without"
            " strong scaling; add --mode strong, or use --per-replica-batch-size"
        )
