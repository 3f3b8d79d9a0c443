"""From a request to distinct trials in execution order.

Definitions:

- Weak scaling keeps ``per_replica_batch_size``; strong scaling keeps
  ``global_batch_size``, which must be divisible by every replica count.
- The baseline is the smallest replica count. Where both modes have the same batch
  there, it is one case that serves both.
- All cases of one repetition have the same seed, so that they can be paired.
- Quality runs come last: cases with a budget, in strong scaling where it was requested,
  so that all of them do the same updates.
- Repetitions are blocks; even blocks run the cases forward, odd ones in reverse (ABBA),
  so that a linear drift of the machine affects every case equally. In a relay, a block
  is a generation (``harness/planning/design.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import pydantic

from harness import catalog
from harness.catalog import SYNTHETIC
from harness.errors import PlanError
from harness.placement import allocation as placement
from harness.placement import processes
from harness.planning import cases as cases_module
from harness.planning import (
    code_digest,
    controls,
    design,
    matching,
    plan_count,
    quality_runs,
)
from results.records import identity
from results.records.models import (
    Control,
    Matching,
    Measuring,
    Order,
    PlannedTrial,
    ScalingMode,
    TrialSpec,
)
from results.store.record_file import first_complaint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.planning.cases import Machine
    from harness.planning.quality_runs import PlannedCase
    from harness.planning.request import SweepRequest
    from harness.planning.source_tree import SourceTree
    from results.records.models import OptionValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSweep:
    """The trials of a request and what its plan record needs.

    Attributes:
      trials: Distinct trials, in execution order.
      baseline_num_replicas: The smallest replica count.
      notes: Defaults that were chosen for the user, one line each.
      preset: The preset's name.
      repeats: Repetitions of each case.
      measuring: How long they are measured, and what for.
      matching: What shows that N replicas match one.
    """

    trials: tuple[PlannedTrial, ...]
    baseline_num_replicas: int
    notes: tuple[str, ...]
    preset: str
    repeats: int
    measuring: Measuring
    matching: Matching

    @property
    def digest(self) -> str:
        """Content digest of the set of trials: the same request has the same.

        It leaves out the order, which can depend on the memory that is free, and the
        repetitions, so that more of them extend the same study.
        """
        by_order = {
            "order": Order.SEQUENTIAL,
            "num_measured_steps": None,
            "is_evaluated": True,
        }
        ids = {
            identity.trial_id(trial.spec.model_copy(update=by_order))
            for trial in self.trials
            if trial.spec.repetition_index == 0 and trial.spec.control is Control.NONE
        }
        return identity.digest(sorted(ids))


def trial_seed(sweep_seed: int, repetition_index: int) -> int:
    """Returns the seed of one repetition, the same for all its cases; 31 bits."""
    text = f"{sweep_seed}/{repetition_index}".encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


def plan_sweep(request: SweepRequest, machine: Machine) -> PlannedSweep:
    """Plans a sweep.

    Raises:
      PlanError: A name is unknown, settings contradict each other or the machine, or
        there are too many trials; they are counted before they are created.
    """
    with refusing_bounds():
        return _plan_sweep(request, machine)


@contextlib.contextmanager
def refusing_bounds() -> Iterator[None]:
    """Builds a record, and reports a value that it cannot store.

    Raises:
      PlanError: Names the field, why its value is wrong, and the value.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        raise PlanError(
            f"the sweep cannot be recorded: {first_complaint(error)}; choose a value"
            " within these bounds"
        ) from error


def _plan_sweep(request: SweepRequest, machine: Machine) -> PlannedSweep:
    info = catalog.workload(request.workload)
    backends = [catalog.backend(name) for name in request.backends]
    preset_name = request.preset or _default_preset(info, request.device)
    preset = catalog.preset(info, preset_name)
    _check_data_dir(request.data_dir)
    _check_counts(request)
    data = catalog.check_data(info, request.data or preset.data, request.data_dir)
    options = {**preset.options, **request.options}
    if options:
        catalog.check_options(info, preset_name, options)
        catalog.check_backends(options, backends)

    replicas, notes = cases_module.choose_replicas(request, machine, preset)
    _check_replicas(request, machine, options, backends, replicas)
    baseline = replicas[0]
    sizes = cases_module.batch_sizes(request, preset, baseline)
    num_cores = placement.cores_per_replica(machine.num_available_cores, replicas)
    is_data_real = data != SYNTHETIC
    common: dict[str, Any] = {
        "workload": info.name,
        "workload_version": info.version,
        "preset": preset_name,
        "data": data,
        "device": request.device,
        "cores_per_replica": num_cores,
        "num_warmup_steps": request.num_warmup_steps or preset.num_warmup_steps,
        "num_measured_steps": request.num_measured_steps or preset.num_measured_steps,
        "steps_per_sync": design.choose_steps_per_sync(request, info),
        "is_evaluated": (
            is_data_real if request.is_evaluated is None else request.is_evaluated
        ),
        "options": options,
        "allocator": design.choose_allocator(request),
        "variables": dict(machine.variables),
    }
    order = design.choose_order(request)
    repeats = design.choose_repeats(request, order)
    plan_count.check(
        plan_count.num_cases(backends, replicas, sizes, request.modes) * repeats
    )
    cases, backend_notes = cases_module.make_cases(
        backends, replicas, sizes, request.modes
    )
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
    learning = quality_runs.choose(request, preset, cases, is_data_real=is_data_real)
    num_quality_runs = 0
    runs: list[PlannedCase] = []
    if learning is not None:
        runs = [*learning.cases]
        if request.baseline is not None:
            runs += design.of_revision(runs, request.baseline.revision)
        num_quality_runs = len(runs) * request.quality_repeats
        notes.append(learning.note)
    if request.is_quality_only:
        cases, repeats = [], request.quality_repeats
        if learning is None:
            raise PlanError(
                f"preset {preset_name!r} of {info.name} has no quality run with data"
                f" {data!r}, and nothing else was requested; give --budget, and --data"
                " that can be learned"
            )
    timed = design.with_twin(cases, machine.num_available_cores, order)
    if request.baseline is not None:
        timed += design.of_revision(cases, request.baseline.revision)
    added, control_notes = controls.choose(
        request, cases, machine.num_available_cores, order
    )
    timed += added
    plan_count.check(len(timed) * repeats + num_quality_runs)
    measured = (
        {**common, **design.relay_fields(request)} if (order is Order.RELAY) else common
    )
    trials = _trials(timed, repeats, request.seed, measured, request.baseline)
    measuring = design.make_measuring(
        request, order, trials, machine.num_available_cores
    )
    if learning is not None:
        common |= {"budget": learning.budget, "is_evaluated": True}
        trials += _trials(
            runs, request.quality_repeats, request.seed, common, request.baseline
        )
    assert len({trial.trial_id for trial in trials}) == len(trials)
    matched = _plan_matching(request, trials, common)
    return PlannedSweep(
        trials=tuple(trials),
        baseline_num_replicas=baseline,
        notes=(
            *notes,
            *backend_notes,
            *control_notes,
            *(
                f"backend {name} is not matched with one replica: {reason}"
                for name, reason in matched.not_checked.items()
            ),
            *design.notes(measuring, repeats),
        ),
        preset=preset_name,
        repeats=repeats,
        measuring=measuring,
        matching=matched,
    )


def _plan_matching(
    request: SweepRequest, trials: Sequence[PlannedTrial], common: dict[str, Any]
) -> Matching:
    """Plans the trials that match N replicas with one."""
    matched, not_matched = matching.choose(request, trials)
    fields = common | {
        "budget": None,
        "is_evaluated": False,
        "num_warmup_steps": matching.NUM_WARMUP_STEPS,
        "num_measured_steps": matching.NUM_MEASURED_STEPS,
        "steps_per_sync": 1,
    }
    return Matching(
        trials=tuple(_trials(matched, 1, request.seed, fields)),
        not_checked=not_matched,
        remarks=matching.remarks(request, matched),
    )


def _check_replicas(
    request: SweepRequest,
    machine: Machine,
    options: Mapping[str, OptionValue],
    backends: Sequence[catalog.BackendInfo],
    replicas: Sequence[int],
) -> None:
    catalog.check_devices(options, request.device, replicas)
    processes.check_share(machine.variables, backends, replicas, request.device)


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


def _trials(
    cases: Sequence[PlannedCase],
    repeats: int,
    seed: int,
    common: dict[str, Any],
    baseline: SourceTree | None = None,
) -> list[PlannedTrial]:
    """Creates the trials of all repetitions, in ABBA order."""
    trials = []
    for repetition in range(repeats):
        repetition_seed = trial_seed(seed, repetition)
        for case in cases if repetition % 2 == 0 else cases[::-1]:
            spec = TrialSpec(
                **common,
                code_digest=code_digest.of_trial(
                    common["workload"],
                    case.backend,
                    baseline if case.revision else None,
                ),
                backend=case.backend,
                num_replicas=case.num_replicas,
                per_replica_batch_size=case.per_replica_batch_size,
                global_batch_size=case.per_replica_batch_size * case.num_replicas,
                control=case.control,
                revision=case.revision,
                repetition_index=repetition,
                seed=repetition_seed,
            )
            trial_id, case_id = identity.ids(spec)
            trials.append(
                PlannedTrial(
                    trial_id=trial_id,
                    case_id=case_id,
                    modes=case.modes,
                    spec=spec,
                )
            )
    return trials


def _default_preset(info: catalog.WorkloadInfo, device: str) -> str:
    names = {preset.name for preset in info.presets}
    return "gpu" if device == "gpu" and "gpu" in names else info.default_preset


def _check_data_dir(data_dir: Path | None) -> None:
    if data_dir is not None and not data_dir.is_dir():
        raise PlanError(
            f"--data-dir {str(data_dir)!r} is not a directory; give the one in which"
            " 'tfds build --data_dir' prepared data sets"
        )


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
