"""From a request to distinct trials in execution order (``harness/README.md``).

Quality runs come last, in strong scaling where it was requested, so that all of them do
the same updates.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.command import peers, reader
from harness.errors import DifferentStudyError, PlanError, StudyError
from harness.machine.machine_state import now_text
from harness.planning import design
from harness.planning.checked import refusing_bounds
from harness.sources import code_digest
from results.records import identity
from results.records.models import (
    Control,
    EquivalenceCheck,
    Order,
    Plan,
    PlannedTrial,
    ScalingMode,
    TrialSpec,
)
from results.store import untrusted
from results.store.manifest import MANIFEST_NAME
from results.store.study_store import PLAN_NAME, Store
from results.study.cases import Study, load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.planning.design import CheckedSweep
    from harness.planning.estimate import PlannedCase


# Studies: their names, where they are, and their plans.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise StudyError(
            f"--study {name!r} is not a study name; allowed are up to 100 letters,"
            " digits and . _ + -, starting with a letter or digit; the directory"
            " around it is --runs-dir"
        )


def find_study(text: str, runs_dir: Path) -> Path:
    """Returns the directory of an existing study, given by name or by path."""
    if not text.strip():
        raise StudyError(
            f"study {text!r} is empty; name a study in {str(runs_dir)!r} or give the"
            " path of a study directory"
        )
    in_runs, path = runs_dir / text, Path(text)
    is_path = untrusted.is_there(path) and not untrusted.is_there(in_runs)
    return path if is_path else in_runs


def load(text: str, runs_dir: Path) -> Study:
    """Reads a study from which something is concluded, given by name or by path."""
    study = load_study(Store.open(find_study(text, runs_dir)))
    if study.problems:
        first, more = study.problems[0], len(study.problems) - 1
        others = f" (and {more} more, see 'status')" if more else ""
        raise StudyError(
            f"study {study.plan.study!r} has a damaged record, {str(first.path)!r}:"
            f" {first.reason}{others}; without it the figures would be others: restore"
            " it from a copy, or remove its folder and measure it again with"
            " 'sweep --study'"
        )
    return study


def read_existing_plan(root: Path) -> Plan | None:
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
    others = [name for name in others if name not in ("trials", MANIFEST_NAME)]
    if others:
        raise StudyError(
            f"{str(root)!r} is not a study: it has {others[0]!r} but no {PLAN_NAME};"
            " choose another --study or empty the directory"
        )
    return None


def check_trials(plan: Plan) -> None:
    if not plan.trials:
        raise StudyError(
            f"the plan of study {plan.study!r} has no trials, so there is nothing to"
            " resume; run a sweep"
        )
    for trial in plan.trials:
        spec = trial.spec
        if spec.program is not None and spec.backend not in catalog.PEERS:
            continue
        catalog.adopt(spec)
        catalog.workload(spec.workload)
        most = catalog.backend(spec.backend).max_replicas
        if spec.control is Control.INDEPENDENT:  # a program per replica
            continue
        if most is not None and spec.num_replicas > most:
            raise PlanError(
                f"the plan of study {plan.study!r} has {spec.num_replicas} replicas on"
                f" backend {spec.backend!r}, which runs at most {most}; plan the sweep"
                " again"
            )


def trial_seed(sweep_seed: int, repetition_index: int) -> int:
    text = f"{sweep_seed}/{repetition_index}".encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


@refusing_bounds()
def default_name(checked: CheckedSweep) -> str:
    """Returns ``<workload>-<preset>-<8 hex>``, whatever the order and repetitions."""
    request, learning = checked.request, checked.learning
    common = {**checked.common, "num_measured_steps": None, "is_evaluated": True}
    cases = () if request.is_quality_only else checked.cases
    trials = _trials(checked, checked.of_both(cases), common)
    if learning is not None:
        own = {**common, "budget": learning.budget}
        trials += _trials(checked, checked.quality_runs, own)
    digest = identity.digest(sorted(trial.trial_id for trial in trials))
    return f"{common['workload']}-{common['preset']}-{digest[:8]}"


@refusing_bounds()
def arrange(
    checked: CheckedSweep,
    order: Order | None = None,
    *,
    study: str = "study",
    command: Sequence[str] = ("harness",),
    launcher: str = "",
) -> tuple[Plan, list[str]]:
    """Returns the plan of a new study in execution order, and notes for the user."""
    learning, num_cores = checked.learning, checked.num_cores
    request = checked.request
    left_out: list[str] = []
    if order is not None and order is not design.choose_order(request):
        if order is not Order.INTERLEAVED and request.controls:
            names = ", ".join(control.label for control in request.controls)
            left_out = [f"no controls ({names}): they need an interleaved measurement"]
            request = request.model_copy(update={"controls": ()})
        request = request.model_copy(update={"order": order})
        checked = dataclasses.replace(checked, request=request)
    common = dict(checked.common)
    order = design.choose_order(request)
    repeats = design.choose_repeats(request, order)
    cases, runs = checked.cases, checked.quality_runs
    if request.is_quality_only:
        cases, repeats = (), request.quality_repeats
    timed = design.with_aa_control(cases, num_cores, order)
    timed += checked.of_both(cases)[len(cases) :]
    added, control_notes = design.choose_controls(checked, cases, order)
    timed += added
    design.check_number(len(timed) * repeats + len(runs) * request.quality_repeats)
    measured = dict(common)
    if order is Order.INTERLEAVED:  # quality runs measure quality
        measured |= {"order": order, "num_measured_steps": None}
        measured["is_evaluated"] = bool(request.is_evaluated)
    trials = _trials(checked, timed, measured, repeats)
    measuring = design.make_measuring(request, order, trials, num_cores)
    if learning is not None:
        common |= {"budget": learning.budget, "is_evaluated": True}
        trials += _trials(checked, runs, common, request.quality_repeats)
    assert len({trial.trial_id for trial in trials}) == len(trials)
    matched = _plan_equivalence(checked, trials, common)
    info, program = checked.info, request.program
    draws = info.draws_random_numbers
    if trials and info.draws_with:
        spec = trials[0].spec
        config = info.make_config(spec.preset, spec.options)
        draws = bool(getattr(config, info.draws_with))
    code = program.code if program else {}
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
        equivalence=matched,
        draws_random_numbers=draws,
        amplifies_rounding=info.amplifies_rounding,
        metrics=reader.count_facts(program.record.counts)
        if program
        else catalog.metrics(info),
        program_code={name: dict(digests) for name, digests in code.items()},
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


def _plan_equivalence(
    checked: CheckedSweep, trials: Sequence[PlannedTrial], common: dict[str, Any]
) -> EquivalenceCheck:
    references, matched, not_checked = design.choose_equivalence(checked, trials)
    equivalence = checked.info.equivalence
    # The reference is on one device, without a pipeline.
    left_out = equivalence.of_splits if equivalence else ()
    options = {k: v for k, v in common["options"].items() if k not in left_out}
    fields = common | {
        "budget": None,
        "is_evaluated": False,
        "num_warmup_steps": design.NUM_WARMUP_STEPS,
        "num_measured_steps": design.NUM_MEASURED_STEPS,
        "steps_per_sync": 1,
    }
    return EquivalenceCheck(
        trials=(
            *_trials(checked, references, fields | {"options": options}),
            *_trials(checked, matched, fields),
        ),
        not_checked=not_checked,
        remarks={
            case.backend: design.matching_remark(checked, case.backend)
            for case in (matched if equivalence else ())
        },
    )


def _trials(
    checked: CheckedSweep,
    cases: Sequence[PlannedCase],
    common: dict[str, Any],
    repeats: int = 1,
) -> list[PlannedTrial]:
    """Creates the trials of all repetitions, in ABBA order."""
    trials = []
    request, info = checked.request, checked.info
    workload, program = info.name, request.program
    for repetition in range(repeats):
        repetition_seed = trial_seed(request.seed, repetition)
        for case in cases if repetition % 2 == 0 else cases[::-1]:
            of_peer = peers.program(workload, case.backend, info.example_unit)
            fields = common if of_peer is None else {**common, "program": of_peer}
            if program is not None and program.variants:
                fields = {**fields, "options": dict(program.variants[case.backend])}
            tree = request.baseline if case.revision else None
            spec = TrialSpec(
                **fields,
                code_digest=(
                    program.code_digest(case.revision)
                    if program
                    else code_digest.trial_digest(workload, case.backend, tree)
                ),
                backend=case.backend,
                plugins=catalog.plugins_of(workload, case.backend),
                num_replicas=case.num_replicas,
                per_replica_batch_size=case.per_replica_batch_size,
                global_batch_size=case.global_batch_size,
                control=case.control,
                revision=case.revision,
                repetition_index=repetition,
                seed=repetition_seed,
            )
            trials.append(identity.planned_trial(spec, case.modes))
    return trials


def with_next_repetition(plan: Plan) -> Plan:
    index = plan.repeats
    update = {"repetition_index": index, "seed": trial_seed(plan.seed, index)}
    added = [
        identity.planned_trial(trial.spec.model_copy(update=update), trial.modes)
        for trial in plan.trials
        if trial.spec.order is Order.INTERLEAVED and trial.spec.repetition_index == 0
    ]
    trials = (*plan.trials, *added)
    return plan.model_copy(update={"repeats": index + 1, "trials": trials})


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
    baseline: code_digest.SourceTree | None = None,
    store: Store | None = None,
) -> tuple[Plan, list[PlannedTrial], str]:
    """Returns the plan to store, the trials requested now, and what was done."""
    if existing is None:
        return new, [*new.trials], ""
    # Equal or fewer trials resume. More repetitions, replica counts, backends or modes
    # extend, if all settings and the code of every trial are the same.
    wanted = _settings(new)
    for name, old_value in _settings(existing).items():
        # Where only one of the plans has a mode, it is added, not changed.
        if name in wanted and old_value != wanted[name]:
            raise DifferentStudyError(
                f"study {existing.study!r} was made with {name} {old_value!r}, this"
                f" sweep has {wanted[name]!r}; repeat the old value, or choose another"
                " --study"
            )
    code_digest.check_code(existing, baseline, store, new.program_code)
    _check_same_cases(existing, new)
    known = {trial.trial_id: trial for trial in existing.trials}
    for trial in new.trials:
        old = known.get(trial.trial_id)
        modes = trial.modes if old is None else (*old.modes, *trial.modes)
        ordered = tuple(mode for mode in ScalingMode if mode in modes)
        known[trial.trial_id] = trial.model_copy(update={"modes": ordered})
    num_added = len(known) - len(existing.trials)
    before = existing.measuring
    kept: dict[str, Any] = {"order": before.order, "primary": before.primary}
    kept["had_target"] = before.is_stopped_on_width
    plan = existing.model_copy(
        update={
            "command": new.command if num_added else existing.command,
            "repeats": max(existing.repeats, new.repeats),
            "measuring": new.measuring.model_copy(update=kept),
            "timeout_sec": new.timeout_sec,
            "data_dir": new.data_dir,
            "plugins": {**existing.plugins, **new.plugins},
            "trials": tuple(known.values()),
            "equivalence": design.merged_equivalence(
                existing.equivalence, new.equivalence
            ),
        }
    )
    note = f"study {plan.study}: resumed"
    if num_added:
        note = f"study {plan.study}: extended by {num_added} trials to {len(known)}"
    return plan, [known[trial.trial_id] for trial in new.trials], note


def _check_same_cases(existing: Plan, new: Plan) -> None:
    """Checks that an interleaved study is extended by repetitions only."""
    is_interleaved = new.measuring.order is Order.INTERLEAVED
    known = {trial.case_id for trial in existing.trials if not trial.spec.budget}
    for trial in new.trials if known and is_interleaved else ():
        spec, control = trial.spec, trial.spec.control
        if trial.case_id not in known and spec.budget is None:
            of_control = f"control {control.label!r} of " * (control != Control.NONE)
            raise DifferentStudyError(
                f"study {existing.study!r} is an interleaved measurement without"
                f" {of_control}{spec.backend} x{spec.num_replicas} at batch"
                f" {spec.per_replica_batch_size} per replica, so it has no blocks"
                " beside the others; an interleaved measurement is extended by"
                " --repeats only: choose another --study"
            )


def _settings(plan: Plan) -> dict[str, Any]:
    if not plan.trials:
        return {"seed": plan.seed}
    excluded = _VARYING | {"schema_version"}
    settings = plan.trials[0].spec.model_dump(mode="json", exclude=excluded)
    settings["seed"] = plan.seed
    by_kind = {trial.spec.budget is not None: trial.spec for trial in plan.trials}
    if timed := by_kind.get(False):
        settings["is_evaluated"] = timed.is_evaluated
        settings["num_measured_steps"] = timed.num_measured_steps
        settings["order"] = timed.order.label
    if True in by_kind:
        settings["budget"] = str(by_kind[True].budget)
    settings["baseline_num_replicas"] = plan.baseline_num_replicas
    weak = _common(plan, ScalingMode.WEAK, "per_replica_batch_size")
    strong = _common(plan, ScalingMode.STRONG, "global_batch_size")
    return settings | weak | strong


def _common(plan: Plan, mode: ScalingMode, field: str) -> dict[str, int]:
    values = {getattr(each.spec, field) for each in plan.trials if mode in each.modes}
    if len(values) > 1:
        first, second, *_ = sorted(values)
        raise DifferentStudyError(
            f"the plan of study {plan.study!r} has trials of {mode.value} scaling with"
            f" {field} {first} and {second}, which it keeps fixed: nothing can be added"
            " to it; choose another --study"
        )
    return {f"{mode.value} {field}": value for value in values}
