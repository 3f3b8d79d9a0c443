"""Compares a planned sweep with a study: new, resumed, extended or refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.command import counts
from harness.errors import DifferentStudyError, PlanError, StudyError
from harness.machine.time_of_day import now_text
from harness.planning import matching
from harness.planning.checked import refusing_bounds
from harness.planning.plan import digest_of
from harness.sources import plugin_code
from harness.sources.same_code import check_code
from results.records.models import Control, Order, Plan, PlannedTrial, ScalingMode
from results.store import untrusted
from results.store.seal import SEAL_NAME
from results.store.study_store import PLAN_NAME, Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import WorkloadInfo
    from harness.planning.checked import CheckedSweep
    from harness.planning.plan import PlannedSweep
    from harness.planning.request import SweepRequest
    from harness.sources.source_tree import SourceTree
    from results.study.cases import Study

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")

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


def default_name(sweep: CheckedSweep) -> str:
    """Returns ``<workload>-<preset>-<8 hex>``: the same sweep resumes its study."""
    of = sweep.common
    return f"{of['workload']}-{of['preset']}-{digest_of(sweep)[:8]}"


def check_name(name: str) -> str:
    """Returns ``name`` if it is a valid study name.

    Raises:
      StudyError: It is empty or would be outside the runs directory.
    """
    if _NAME.fullmatch(name) is None:
        raise StudyError(
            f"--study {name!r} is not a study name; allowed are up to 100 letters,"
            " digits and . _ + -, starting with a letter or digit; the directory"
            " around it is --runs-dir"
        )
    return name


def find_study(text: str, runs_dir: Path) -> Path:
    """Returns the directory of an existing study, given by name or by path.

    Raises:
      StudyError: ``text`` is empty.
    """
    if not text.strip():
        raise StudyError(
            f"study {text!r} is empty; name a study in {str(runs_dir)!r} or give the"
            " path of a study directory"
        )
    in_runs = runs_dir / text
    is_in_runs = untrusted.is_there(in_runs) or not untrusted.is_there(Path(text))
    return in_runs if is_in_runs else Path(text)


def load(text: str, runs_dir: Path) -> Study:
    """Reads a study from which something is concluded, given by name or by path.

    Raises:
      StudyError: A record is damaged: without it another figure would be computed.
      ResultsError: There is none, or it cannot be read.
    """
    return complete(load_study(Store.open(find_study(text, runs_dir))))


def complete(study: Study) -> Study:
    """Returns a study of which every record is readable.

    Raises:
      StudyError: A record is damaged; names the first and says what to do.
    """
    if study.problems:
        first, more = study.problems[0], len(study.problems) - 1
        others = f" (and {more} more, see 'status')" if more else ""
        raise StudyError(
            f"study {study.plan.study!r} has a damaged record, {str(first.path)!r}:"
            f" {first.reason}{others}; without it the figures would be others: restore"
            " it from a copy, or remove its folder and measure it again with 'resume'"
        )
    return study


def make_plan(
    sweep: PlannedSweep,
    request: SweepRequest,
    *,
    study: str,
    command: Sequence[str],
    launcher: str = "",
) -> Plan:
    """Returns the plan record of a new study.

    Args:
      sweep: Its trials.
      request: What they are of.
      study: Its name.
      command: What was called.
      launcher: The name of what starts them.

    Raises:
      PlanError: A string or number exceeds the limits of a record.
    """
    program = request.program
    info = (
        catalog.workload(request.workload) if program is None else program.workload(1)
    )
    with refusing_bounds():
        return Plan(
            study=study,
            created_at=now_text(),
            command=tuple(command),
            baseline_num_replicas=sweep.baseline_num_replicas,
            repeats=sweep.repeats,
            seed=request.seed,
            timeout_sec=request.timeout_sec,
            data_dir=(
                None if request.data_dir is None else str(request.data_dir.absolute())
            ),
            measuring=sweep.measuring,
            matching=sweep.matching,
            draws_random_numbers=_draws_random_numbers(info, sweep),
            metrics=(
                catalog.metrics(info)
                if program is None
                else counts.facts(program.record.counts)
            ),
            program_code=(
                {}
                if program is None
                else {name: dict(parts) for name, parts in program.code.items()}
            ),
            plugins=plugin_code.of_study(sweep.trials, launcher),
            trials=sweep.trials,
        )


def _draws_random_numbers(info: WorkloadInfo, sweep: PlannedSweep) -> bool:
    """Returns whether steps of the study draw random numbers."""
    if not sweep.trials:
        return info.draws_random_numbers
    spec = sweep.trials[0].spec
    return catalog.draws_random_numbers(info, spec.preset, spec.options)


def read_existing_plan(root: Path) -> Plan | None:
    """Returns the plan in ``root``, or None if there is no study yet.

    Raises:
      StudyError: ``root`` is a file, or a directory that is not a study.
      ResultsError: The plan is corrupt or written by a newer version.
    """
    if not untrusted.is_there(root):
        return None
    if not root.is_dir():
        raise StudyError(
            f"{str(root)!r} is a file, but a study is a directory; choose another"
            " --study or move the file away"
        )
    if untrusted.is_there(root / PLAN_NAME):
        return Store.open(root).read_plan()
    others = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
    # A harness that begins it may have come no further yet, or have ended there.
    others = [name for name in others if name not in ("trials", SEAL_NAME)]
    if others:
        raise StudyError(
            f"{str(root)!r} is not a study: it has {others[0]!r} but no {PLAN_NAME};"
            " choose another --study or empty the directory"
        )
    return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reconciled:
    """A plan to store, and those of its trials that were requested now.

    Attributes:
      plan: The plan of the study, after extension.
      asked: The trials of the request.
      is_changed: Whether ``plan`` must be written.
      note: Whether the study is resumed or extended; None for a new study.
    """

    plan: Plan
    asked: tuple[PlannedTrial, ...]
    is_changed: bool
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

    Args:
      existing: The plan of the study; None if it is new.
      new: The plan of this sweep.
      baseline: See ``check_code``.
      store: See ``check_code``.

    Raises:
      DifferentStudyError: A setting or the code differs; the message names it and both
        values.
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

    Raises:
      DifferentStudyError: Names a case that would be added.
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


def check_trials(plan: Plan) -> None:
    """Checks that every trial of a stored plan can be started.

    Raises:
      StudyError: The plan has no trials.
      PlanError: A trial has an unknown workload or backend, or more replicas than its
        backend runs.
    """
    if not plan.trials:
        raise StudyError(
            f"the plan of study {plan.study!r} has no trials, so there is nothing to"
            " resume; run a sweep"
        )
    for trial in plan.trials:
        spec = trial.spec
        if spec.program is not None and catalog.peer(spec.backend) is None:
            continue
        catalog.adopt(spec)
        catalog.workload(spec.workload)
        most = catalog.backend(spec.backend).max_replicas
        if spec.control is Control.SOLO:  # a program per replica
            continue
        if most is not None and spec.num_replicas > most:
            raise PlanError(
                f"the plan of study {plan.study!r} has {spec.num_replicas} replicas on"
                f" backend {spec.backend!r}, which runs at most {most}; plan the sweep"
                " again"
            )
