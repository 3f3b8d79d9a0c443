"""What a sweep adds to a study: it is new, resumed, extended or refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from harness.errors import DifferentStudyError
from harness.planning import matching
from harness.sources.code_check import check_code
from results.records.models import Control, Order, Plan, PlannedTrial, ScalingMode

if TYPE_CHECKING:
    from harness.sources.code_digest import SourceTree
    from results.store.study_store import Store

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
                name = f"control {control.value!r} of {name}"
            raise DifferentStudyError(
                f"study {existing.study!r} is a relay without {name}"
                f" x{spec.num_replicas} at batch {spec.per_replica_batch_size} per"
                " replica, so it has no turns beside the others; a relay is extended by"
                " --repeats only: choose another --study"
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
        settings["order"] = by_kind[False].order.value
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
