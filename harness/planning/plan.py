"""From a request to distinct trials in execution order (``harness/README.md``).

Quality runs come last, in strong scaling where it was requested, so that all of them do
the same updates.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.command import peers
from harness.errors import DifferentStudyError
from harness.planning import checked as checked_lib
from harness.planning import design, matching
from harness.planning.checked import check, refusing_bounds
from harness.sources import code_digest
from harness.sources.code_digest import check_code
from results.records import identity
from results.records.models import (
    Control,
    Matching,
    Measuring,
    Order,
    Plan,
    PlannedTrial,
    ScalingMode,
    TrialSpec,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.command.program import ForeignProgram
    from harness.planning.checked import CheckedSweep, Machine
    from harness.planning.estimate import PlannedCase
    from harness.planning.request import SweepRequest
    from harness.sources.code_digest import SourceTree
    from results.store.study_store import Store


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSweep:
    """The trials of a request and what its plan record needs."""

    trials: tuple[PlannedTrial, ...]  # Distinct trials, in execution order.
    baseline_num_replicas: int  # The smallest replica count.
    notes: tuple[str, ...]  # Defaults that were chosen for the user, one line each.
    preset: str  # The preset's name.
    repeats: int  # Repetitions of each case.
    measuring: Measuring  # How long they are measured, and what for.
    matching: Matching  # What shows that N replicas match one.


def trial_seed(sweep_seed: int, repetition_index: int) -> int:
    """Returns the seed of one repetition, the same for all its cases; 31 bits."""
    text = f"{sweep_seed}/{repetition_index}".encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


def plan_sweep(request: SweepRequest, machine: Machine) -> PlannedSweep:
    """Plans a sweep."""
    return arrange(check(request, machine))


@refusing_bounds()
def digest_of(checked: CheckedSweep) -> str:
    """Returns a digest of what is measured, by which a study is found again.

    Order, which can depend on free memory, and repetitions are no part of it.
    """
    request, learning = checked.request, checked.learning
    common = {**checked.common, "num_measured_steps": None, "is_evaluated": True}
    cases = [] if request.is_quality_only else checked.cases
    kinds = [(cases, common)]
    if learning is not None:
        kinds.append((learning.cases, {**common, "budget": learning.budget}))
    ids = [
        trial.trial_id
        for of_kind, fields in kinds
        for trial in _trials(
            design.with_revision(of_kind, request.baseline),
            1,
            request.seed,
            fields,
            request.baseline,
            request.program,
        )
    ]
    return identity.digest(sorted(ids))


@refusing_bounds()
def arrange(checked: CheckedSweep, order: Order | None = None) -> PlannedSweep:
    """Returns the trials of a checked request, in execution order."""
    learning, num_cores = checked.learning, checked.num_cores
    request = checked.request
    left_out: list[str] = []
    if order is not None and order is not design.choose_order(request):
        request, left_out = design.with_order(request, order)
    common = dict(checked.common)
    order = design.choose_order(request)
    repeats = design.choose_repeats(request, order)
    cases: list[PlannedCase] = [*checked.cases]
    runs: list[PlannedCase] = []
    if learning is not None:
        runs = design.with_revision(learning.cases, request.baseline)
    if request.is_quality_only:
        cases, repeats = [], request.quality_repeats
    timed = design.with_twin(cases, num_cores, order)
    timed += design.with_revision(cases, request.baseline)[len(cases) :]
    added, control_notes = design.choose_controls(request, cases, num_cores, order)
    timed += added
    checked_lib.check_number(len(timed) * repeats + len(runs) * request.quality_repeats)
    measured = (
        {**common, **design.relay_fields(request)} if (order is Order.RELAY) else common
    )
    trials = _trials(
        timed, repeats, request.seed, measured, request.baseline, request.program
    )
    measuring = design.make_measuring(request, order, trials, num_cores)
    if learning is not None:
        common |= {"budget": learning.budget, "is_evaluated": True}
        trials += _trials(
            runs, request.quality_repeats, request.seed, common, request.baseline
        )
    assert len({trial.trial_id for trial in trials}) == len(trials)
    matched = _plan_matching(request, trials, common)
    return PlannedSweep(
        trials=tuple(trials),
        baseline_num_replicas=checked.baseline_num_replicas,
        notes=(
            *left_out,
            *checked.notes,
            *control_notes,
            *(
                f"backend {name} is not checked against one replica: {reason}"
                for name, reason in matched.not_checked.items()
            ),
            *design.notes(measuring, repeats),
        ),
        preset=common["preset"],
        repeats=repeats,
        measuring=measuring,
        matching=matched,
    )


def _plan_matching(
    request: SweepRequest, trials: Sequence[PlannedTrial], common: dict[str, Any]
) -> Matching:
    """Plans the trials that match N replicas with one."""
    references, matched, not_matched = matching.choose(request, trials)
    info = None if request.program else catalog.workload(request.workload)
    options = matching.options_of_reference(info, common["options"])
    fields = common | {
        "budget": None,
        "is_evaluated": False,
        "num_warmup_steps": matching.NUM_WARMUP_STEPS,
        "num_measured_steps": matching.NUM_MEASURED_STEPS,
        "steps_per_sync": 1,
    }
    seed, program = request.seed, request.program
    return Matching(
        trials=(
            *_trials(references, 1, seed, fields | {"options": options}, None, program),
            *_trials(matched, 1, seed, fields, None, program),
        ),
        not_checked=not_matched,
        remarks=matching.remarks(request, matched),
    )


def _trials(
    cases: Sequence[PlannedCase],
    repeats: int,
    seed: int,
    common: dict[str, Any],
    baseline: SourceTree | None = None,
    program: ForeignProgram | None = None,
) -> list[PlannedTrial]:
    """Creates the trials of all repetitions, in ABBA order."""
    trials = []
    unit = "" if program else catalog.workload(common["workload"]).example_unit
    for repetition in range(repeats):
        repetition_seed = trial_seed(seed, repetition)
        for case in cases if repetition % 2 == 0 else cases[::-1]:
            of_peer = peers.program(common["workload"], case.backend, unit)
            fields = common if of_peer is None else {**common, "program": of_peer}
            if program is not None and program.variants:
                fields = {**fields, "options": dict(program.variants[case.backend])}
            spec = TrialSpec(
                **fields,
                code_digest=(
                    code_digest.of_trial(
                        common["workload"],
                        case.backend,
                        baseline if case.revision else None,
                    )
                    if program is None
                    else program.code_digest(case.revision)
                ),
                backend=case.backend,
                plugins=(
                    {}
                    if program is not None
                    else catalog.plugins_of(common["workload"], case.backend)
                ),
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


def with_next_generation(plan: Plan) -> Plan:
    """Returns the plan with one more generation of its relay."""
    index = plan.repeats
    update = {"repetition_index": index, "seed": trial_seed(plan.seed, index)}
    added = []
    for trial in plan.trials:
        spec = trial.spec
        if spec.order is Order.RELAY and spec.repetition_index == 0:
            new = spec.model_copy(update=update)
            trial_id, case_id = identity.ids(new)
            added.append(
                PlannedTrial(
                    trial_id=trial_id, case_id=case_id, modes=trial.modes, spec=new
                )
            )
    return plan.model_copy(
        update={"repeats": index + 1, "trials": (*plan.trials, *added)}
    )


# Fields that may differ between the trials of one study; all others are settings. The
# code is checked separately, since it depends on the backend.
_VARYING = {
    "backend",
    "budget",
    "code_digest",
    "control",
    "is_evaluated",
    "num_measured_steps",
    "num_replicas",
    "order",
    "plugins",
    "per_replica_batch_size",
    "global_batch_size",
    "repetition_index",
    "revision",
    "seed",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reconciled:
    """A plan to store, and those of its trials that were requested now."""

    plan: Plan  # The plan of the study, after extension.
    asked: tuple[PlannedTrial, ...]  # The trials of the request.
    is_changed: bool  # Whether ``plan`` must be written.
    # Whether the study is resumed or extended; None for a new study.
    note: str | None = None


def reconcile(
    existing: Plan | None,
    new: Plan,
    baseline: SourceTree | None = None,
    store: Store | None = None,
) -> Reconciled:
    """Resumes or extends an existing plan with a new one.

    Equal or fewer trials resume. More repetitions, replica counts, backends or modes
    extend, if all settings and the code of every trial in the plan are the same: new
    trials are compared with the existing ones.
    """
    if existing is None:
        return Reconciled(plan=new, asked=new.trials, is_changed=True)
    _check_same_settings(existing, new)
    check_code(existing, baseline, store, new.program_code)
    _check_same_cases(existing, new)
    known = {trial.trial_id: trial for trial in existing.trials}
    for trial in new.trials:
        old = known.get(trial.trial_id)
        modes = trial.modes if old is None else (*old.modes, *trial.modes)
        ordered = tuple(mode for mode in ScalingMode if mode in modes)
        known[trial.trial_id] = trial.model_copy(update={"modes": ordered})
    num_added = len(known) - len(existing.trials)
    plan = existing.model_copy(
        update={
            "command": new.command if num_added else existing.command,
            "repeats": max(existing.repeats, new.repeats),
            "measuring": existing.measuring.model_copy(
                update={
                    "minutes": new.measuring.minutes,
                    "generation_sec": new.measuring.generation_sec,
                    "max_rounds": new.measuring.max_rounds,
                    "target": new.measuring.target,
                    "had_target": existing.measuring.is_stopped_on_width,
                    "efficiency_target": new.measuring.efficiency_target,
                    "gate": new.measuring.gate,
                }
            ),
            "timeout_sec": new.timeout_sec,
            "data_dir": new.data_dir,
            "plugins": {**existing.plugins, **new.plugins},
            "trials": tuple(known.values()),
            "matching": matching.merged(existing.matching, new.matching),
        }
    )
    return Reconciled(
        plan=plan,
        asked=tuple(known[trial.trial_id] for trial in new.trials),
        is_changed=plan != existing,
        note=(
            f"study {plan.study}: extended by {num_added} trials to {len(known)}"
            if num_added
            else f"study {plan.study}: resumed"
        ),
    )


def _check_same_settings(existing: Plan, new: Plan) -> None:
    old_settings, new_settings = _settings(existing), _settings(new)
    for name, old_value in old_settings.items():
        if name not in new_settings:
            # Only one of the plans has this mode: it is added, not changed.
            continue
        new_value = new_settings[name]
        if old_value != new_value:
            raise DifferentStudyError(
                f"study {existing.study!r} was made with {name} {old_value!r}, this"
                f" sweep has {new_value!r}; repeat the old value, or choose another"
                " --study"
            )


def _check_same_cases(existing: Plan, new: Plan) -> None:
    """Checks that a relay is extended by generations only.

    Its cases are compared turn by turn: one that was not there cannot be added.
    """
    if new.measuring.order is not Order.RELAY:
        return
    known = {trial.case_id for trial in existing.trials if not trial.spec.budget}
    if not known:
        return
    for trial in new.trials:
        if trial.case_id not in known and trial.spec.budget is None:
            spec = trial.spec
            control = spec.control
            name = spec.backend
            if control is not Control.NONE:
                name = f"control {control.label!r} of {name}"
            raise DifferentStudyError(
                f"study {existing.study!r} is an interleaved measurement without {name}"
                f" x{spec.num_replicas} at batch {spec.per_replica_batch_size} per"
                " replica, so it has no blocks beside the others; an interleaved "
                "measurement is extended by --repeats only: choose another --study"
            )


def _settings(plan: Plan) -> dict[str, Any]:
    if not plan.trials:
        return {"seed": plan.seed}
    settings = plan.trials[0].spec.model_dump(mode="json", exclude=_VARYING)
    settings.pop("schema_version")
    settings["seed"] = plan.seed
    by_kind = {trial.spec.budget is not None: trial.spec for trial in plan.trials}
    if False in by_kind:
        settings["is_evaluated"] = by_kind[False].is_evaluated
        settings["num_measured_steps"] = by_kind[False].num_measured_steps
        settings["order"] = by_kind[False].order.label
    if True in by_kind:
        settings["budget"] = str(by_kind[True].budget)
    settings["baseline_num_replicas"] = plan.baseline_num_replicas
    weak = _common(plan, ScalingMode.WEAK, "per_replica_batch_size")
    strong = _common(plan, ScalingMode.STRONG, "global_batch_size")
    return settings | weak | strong


def _common(plan: Plan, mode: ScalingMode, field: str) -> dict[str, int]:
    values = {
        getattr(trial.spec, field) for trial in plan.trials if mode in trial.modes
    }
    if len(values) > 1:
        first, second, *_ = sorted(values)
        raise DifferentStudyError(
            f"the plan of study {plan.study!r} has trials of {mode.value} scaling with"
            f" {field} {first} and {second}, which it keeps fixed: nothing can be added"
            " to it; choose another --study"
        )
    return {f"{mode.value} {field}": value for value in values}
