"""From a request to distinct trials in execution order (``harness/README.md``).

Quality runs come last, in strong scaling where it was requested, so that all of them do
the same updates.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.command import peers, reader
from harness.errors import DifferentStudyError
from harness.machine.machine_state import now_text
from harness.planning import checked as checked_lib
from harness.planning import design
from harness.planning.checked import check, refusing_bounds
from harness.sources import code_digest
from harness.sources.code_digest import check_code
from results.records import identity
from results.records.models import (
    Control,
    Matching,
    Order,
    Plan,
    PlannedTrial,
    ScalingMode,
    TrialSpec,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.planning.checked import CheckedSweep, Machine
    from harness.planning.estimate import PlannedCase
    from harness.planning.request import SweepRequest
    from harness.sources.code_digest import SourceTree
    from results.store.study_store import Store


def trial_seed(sweep_seed: int, repetition_index: int) -> int:
    """Returns the seed of one repetition, the same for all its cases; 31 bits."""
    text = f"{sweep_seed}/{repetition_index}".encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


def plan_sweep(
    request: SweepRequest,
    machine: Machine,
    study: str = "study",
    command: Sequence[str] = ("harness",),
) -> Plan:
    """Plans a sweep."""
    return arrange(check(request, machine), study=study, command=command)[0]


@refusing_bounds()
def digest_of(checked: CheckedSweep) -> str:
    """Returns a digest of what is measured, by which a study is found again.

    Order, which can depend on free memory, and repetitions are no part of it.
    """
    request, learning = checked.request, checked.learning
    common = {**checked.common, "num_measured_steps": None, "is_evaluated": True}
    cases = () if request.is_quality_only else checked.cases
    trials = _trials(request, design.with_revision(cases, request.baseline), common)
    if learning is not None:
        runs = design.with_revision(learning.cases, request.baseline)
        trials += _trials(request, runs, {**common, "budget": learning.budget})
    return identity.digest(sorted(trial.trial_id for trial in trials))


@refusing_bounds()
def arrange(
    checked: CheckedSweep,
    order: Order | None = None,
    *,
    study: str,
    command: Sequence[str],
    launcher: str = "",
) -> tuple[Plan, list[str]]:
    """Returns the plan record of a new study, and what was chosen for the user.

    Its trials are in execution order.
    """
    learning, num_cores = checked.learning, checked.num_cores
    request = checked.request
    left_out: list[str] = []
    if order is not None and order is not design.choose_order(request):
        if order is not Order.RELAY and request.controls:
            names = ", ".join(control.label for control in request.controls)
            left_out = [f"no controls ({names}): they need an interleaved measurement"]
            request = request.model_copy(update={"controls": ()})
        request = request.model_copy(update={"order": order})
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
    measured = dict(common)
    if order is Order.RELAY:  # quality runs measure quality
        measured |= {"order": order, "num_measured_steps": None}
        measured["is_evaluated"] = bool(request.is_evaluated)
    trials = _trials(request, timed, measured, repeats)
    measuring = design.make_measuring(request, order, trials, num_cores)
    if learning is not None:
        common |= {"budget": learning.budget, "is_evaluated": True}
        trials += _trials(request, runs, common, request.quality_repeats)
    assert len({trial.trial_id for trial in trials}) == len(trials)
    matched = _plan_matching(request, trials, common)
    program = request.program
    info = program.workload(1) if program else catalog.workload(request.workload)
    draws = info.draws_random_numbers
    if trials and info.draws_with:
        spec = trials[0].spec
        config = catalog.workload_catalog.make_config(
            info.name, spec.preset, spec.options
        )
        draws = bool(getattr(config, info.draws_with))
    plan = Plan(
        study=study,
        created_at=now_text(),
        command=tuple(command),
        baseline_num_replicas=checked.baseline_num_replicas,
        repeats=repeats,
        seed=request.seed,
        timeout_sec=request.timeout_sec,
        data_dir=data_dir_here(),
        measuring=measuring,
        matching=matched,
        draws_random_numbers=draws,
        amplifies_rounding=info.amplifies_rounding,
        metrics=(
            reader.count_facts(program.record.counts)
            if program
            else catalog.metrics(info)
        ),
        program_code={name: dict(of) for name, of in program.code.items()}
        if program
        else {},
        plugins=code_digest.plugins_of_study(trials, launcher),
        trials=tuple(trials),
    )
    return plan, [
        *left_out,
        *checked.notes,
        *control_notes,
        *(
            f"backend {name} is not checked against one replica: {reason}"
            for name, reason in matched.not_checked.items()
        ),
        *design.notes(measuring, repeats),
    ]


def data_dir_here() -> str | None:
    """Returns the directory of TFDS data sets that the environment names, absolute."""
    named = os.environ.get("TFDS_DATA_DIR")
    return str(Path(named).absolute()) if named else None


def _plan_matching(
    request: SweepRequest, trials: Sequence[PlannedTrial], common: dict[str, Any]
) -> Matching:
    """Plans the trials that match N replicas with one."""
    references, matched, not_matched = design.choose_matching(request, trials)
    info = None if request.program else catalog.workload(request.workload)
    options = design.options_of_reference(info, common["options"])
    fields = common | {
        "budget": None,
        "is_evaluated": False,
        "num_warmup_steps": design.NUM_WARMUP_STEPS,
        "num_measured_steps": design.NUM_MEASURED_STEPS,
        "steps_per_sync": 1,
    }
    return Matching(
        trials=(
            *_trials(request, references, fields | {"options": options}),
            *_trials(request, matched, fields),
        ),
        not_checked=not_matched,
        remarks=design.matching_remarks(request, matched),
    )


def _trials(
    request: SweepRequest,
    cases: Sequence[PlannedCase],
    common: dict[str, Any],
    repeats: int = 1,
) -> list[PlannedTrial]:
    """Creates the trials of all repetitions, in ABBA order."""
    trials = []
    workload, program = common["workload"], request.program
    unit = "" if program else catalog.workload(workload).example_unit
    for repetition in range(repeats):
        repetition_seed = trial_seed(request.seed, repetition)
        for case in cases if repetition % 2 == 0 else cases[::-1]:
            of_peer = peers.program(workload, case.backend, unit)
            fields = common if of_peer is None else {**common, "program": of_peer}
            if program is not None and program.variants:
                fields = {**fields, "options": dict(program.variants[case.backend])}
            tree = request.baseline if case.revision else None
            spec = TrialSpec(
                **fields,
                code_digest=(
                    program.code_digest(case.revision)
                    if program
                    else code_digest.of_trial(workload, case.backend, tree)
                ),
                backend=case.backend,
                plugins=catalog.plugins_of(workload, case.backend),
                num_replicas=case.num_replicas,
                per_replica_batch_size=case.per_replica_batch_size,
                global_batch_size=case.per_replica_batch_size * case.num_replicas,
                control=case.control,
                revision=case.revision,
                repetition_index=repetition,
                seed=repetition_seed,
            )
            trials.append(_planned(spec, case.modes))
    return trials


def _planned(spec: TrialSpec, modes: tuple[ScalingMode, ...]) -> PlannedTrial:
    trial_id, case_id = identity.ids(spec)
    return PlannedTrial(trial_id=trial_id, case_id=case_id, modes=modes, spec=spec)


def with_next_generation(plan: Plan) -> Plan:
    """Returns the plan with one more generation of its relay."""
    index = plan.repeats
    update = {"repetition_index": index, "seed": trial_seed(plan.seed, index)}
    added = [
        _planned(trial.spec.model_copy(update=update), trial.modes)
        for trial in plan.trials
        if trial.spec.order is Order.RELAY and trial.spec.repetition_index == 0
    ]
    return plan.model_copy(
        update={"repeats": index + 1, "trials": (*plan.trials, *added)}
    )


# Fields that may differ between the trials of one study; all others are settings. The
# code is checked separately, since it depends on the backend.
_VARYING = {
    *("backend", "budget", "code_digest", "control", "is_evaluated", "order"),
    *("num_measured_steps", "num_replicas", "plugins", "per_replica_batch_size"),
    *("global_batch_size", "repetition_index", "revision", "seed"),
}


def reconcile(
    existing: Plan | None,
    new: Plan,
    baseline: SourceTree | None = None,
    store: Store | None = None,
) -> tuple[Plan, list[PlannedTrial], str]:
    """Resumes or extends an existing plan with a new one.

    Returns the plan to store, the trials that were requested now, and what was done,
    empty of a new study.
    Equal or fewer trials resume. More repetitions, replica counts, backends or modes
    extend, if all settings and the code of every trial in the plan are the same: new
    trials are compared with the existing ones.
    """
    if existing is None:
        return new, [*new.trials], ""
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
            "matching": design.merged_matching(existing.matching, new.matching),
        }
    )
    note = f"study {plan.study}: resumed"
    if num_added:
        note = f"study {plan.study}: extended by {num_added} trials to {len(known)}"
    return plan, [known[trial.trial_id] for trial in new.trials], note


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
