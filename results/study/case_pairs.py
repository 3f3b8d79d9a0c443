"""Which cases of two studies are the same, and whether their figures can be compared.

Two studies are measured at different times. What is compared must then be the only
thing that differs: machine, workload version and placement must be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from results import errors
from results.records.measuring import StepSettings
from results.study.cases import MISSING, Entry, Study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from results.records.models import PlannedTrial
    from results.study.cases import Case

    # Backend, replicas, batch per replica.
    CaseKey = tuple[str, int, int]

SETTINGS = (
    "preset",
    "data",
    "device",
    "order",
    "allocator",
    "variables",
    "options",
    "num_warmup_steps",
    *StepSettings.model_fields,
    "budget",
)
"""Fields of a spec that two studies may differ in, since this may be the comparison."""

FINGERPRINT = "machine fingerprint"
"""Begins the line of two studies that ran on different machines."""

_PLACEMENT_FIELDS = (
    "cores_per_replica",
    "num_intra_op_threads",
    "num_inter_op_threads",
    "num_available_cores",
    "cgroup_quota_cores",
    "is_oversubscribed",
    "device_sharing",
)


def key_of(case: Case) -> CaseKey:
    """Returns what a case is within a study, whatever its revision."""
    spec = case.spec
    return spec.backend, spec.num_replicas, spec.per_replica_batch_size


def planned_differences(
    trials: Sequence[PlannedTrial],
    stored: Study,
    fingerprint: str,
    *,
    are_quality_runs: bool = False,
) -> tuple[str, ...]:
    """Returns what would differ from a stored study, before anything is measured."""
    entries = [
        Entry(
            trial_id=trial.trial_id,
            case_id=trial.case_id,
            modes=trial.modes,
            spec=trial.spec,
            trial=None,
            state=MISSING,
            reason="not started",
        )
        for trial in trials
    ]
    plan = stored.plan.model_copy(update={"study": "this tree"})
    planned = Study(plan=plan, entries=tuple(entries), problems=())
    found = [*_machine_difference({fingerprint}, fingerprints(stored))]
    both = pairs(planned, stored, are_quality_runs=are_quality_runs)
    found += _case_differences(both)
    for case, other in both:
        found += settings(case, other)
    return tuple(dict.fromkeys(found))


def pairs(
    first: Study, second: Study, *, are_quality_runs: bool = False
) -> list[tuple[Case, Case]]:
    """Returns the cases of this tree that both studies have, in order of the first."""
    cases, others = (
        [case for case in study.quality_runs if not case.spec.revision]
        if are_quality_runs
        else study.cases
        for study in (first, second)
    )
    for study, own in ((first, cases), (second, others)):
        if not own:
            raise errors.ResultsError(
                f"study {study.plan.study!r} has no quality run; run its sweep with"
                " --budget, or name another study"
                if are_quality_runs
                else f"study {study.plan.study!r} has no timed case; compare studies of"
                " sweeps"
            )
    here, there = cases[0].spec.workload, others[0].spec.workload
    if here != there:
        raise errors.ResultsError(
            f"study {first.plan.study!r} is of workload {here!r}, study"
            f" {second.plan.study!r} of {there!r}; compare studies of one workload"
        )
    by_key = {key_of(case): case for case in others}
    found = [(case, by_key[key_of(case)]) for case in cases if key_of(case) in by_key]
    if not found:
        raise errors.ResultsError(
            f"no case is in both {first.plan.study!r} ({_names(cases)}) and"
            f" {second.plan.study!r} ({_names(others)}); compare studies with the same"
            " backends, replicas and batches"
        )
    return found


def _names(cases: Sequence[Case]) -> str:
    return "; ".join(case.label for case in cases)


def differences(
    first: Study, second: Study, *, are_quality_runs: bool = False
) -> tuple[str, ...]:
    """Returns what must be equal and is not, one line each; see ``pairs``."""
    found = [*_machine_difference(fingerprints(first), fingerprints(second))]
    found += _case_differences(pairs(first, second, are_quality_runs=are_quality_runs))
    return tuple(dict.fromkeys(found))


def _machine_difference(here: set[str], there: set[str]) -> Iterator[str]:
    if here != there:
        yield f"{FINGERPRINT}: {_listed(here)} / {_listed(there)}"


def _case_differences(both: Sequence[tuple[Case, Case]]) -> Iterator[str]:
    for case, other in both:
        if case.spec.workload_version != other.spec.workload_version:
            yield (
                f"workload version: {case.spec.workload_version!r} /"
                f" {other.spec.workload_version!r}"
            )
        if case.spec.cores_per_replica != other.spec.cores_per_replica:
            yield (
                f"placement: cores_per_replica {case.spec.cores_per_replica} /"
                f" {other.spec.cores_per_replica}"
            )
        yield from _placement_differences(case, other)


def _placement_differences(case: Case, other: Case) -> Iterator[str]:
    for name in _PLACEMENT_FIELDS:
        here = {getattr(place, name) for place in _placements(case)}
        there = {getattr(place, name) for place in _placements(other)}
        if here and there and here != there:
            yield f"placement: {name} {_listed(here)} / {_listed(there)}"


def _placements(case: Case) -> list[object]:
    return [
        entry.trial.env.placement
        for entry in case.ok_entries
        if entry.trial is not None and entry.trial.env is not None
    ]


def fingerprints(study: Study) -> set[str]:
    """Returns the fingerprints of the machines that measured a study."""
    return {
        entry.trial.env.fingerprint
        for entry in study.planned
        if entry.is_ok and entry.trial is not None and entry.trial.env is not None
    }


def _listed(values: set[object] | set[str]) -> str:
    return "+".join(sorted(map(str, values))) or "none"


def settings(first: Case, second: Case) -> tuple[str, ...]:
    """Returns the settings in which two cases differ, one line each."""
    found = []
    for name in SETTINGS:
        here, there = getattr(first.spec, name), getattr(second.spec, name)
        if here != there:
            found.append(f"{name}: {_text(here)} / {_text(there)}")
    return tuple(found)


def _text(value: object) -> str:
    return str(getattr(value, "value", value))
