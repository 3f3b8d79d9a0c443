"""Studies of the same case over time.

A *series* has one case (all that a spec says, except its code, repetition, seed and
number of steps) on one machine class (``machine_class``): figures of different machines
are never compared.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.figures import table
from results.records import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from results.records.models import Environment
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Study

_OWN_PACKAGE = "replicator-harness"
_NOT_SERIES = {
    "schema_version",
    "code_digest",
    "repetition_index",
    "seed",
    "num_measured_steps",
    "is_evaluated",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One case of one study."""

    study: str  # Name of the study.
    date: str  # Start of its first trial, RFC 3339, UTC.
    commit: str  # As ``MachineState.commit_text``; empty if unknown.
    throughput: Estimate  # With its interval.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One case on one machine class, over time."""

    workload: str  # Its name.
    preset: str  # Its preset.
    case: str  # Backend, replicas and batch, in words.
    case_key: str  # Digest of all that the case is; equal on all machines.
    machine: str  # The machine class, a digest.
    machine_name: str  # CPU, cores and GPUs, in words.
    observations: tuple[Observation, ...]  # In order of time.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All series of some studies."""

    series: tuple[Series, ...]  # By workload, preset, case and machine.
    # Cases without a place in a series, and why, one line each.
    left_out: tuple[str, ...]


def machine_class(env: Environment) -> str:
    """Returns a digest of what must match before two figures are compared.

    As the fingerprint, but without the version of this package: that is what changes.
    """
    state = None
    if env.machine_state is not None:
        state = env.machine_state.without_code()
    packages = {k: v for k, v in env.packages.items() if k != _OWN_PACKAGE}
    return identity.digest(
        {
            "cpu_model": env.cpu_model,
            "num_logical_cores": env.num_logical_cores,
            "memory_gib": round(env.memory_bytes / 2**30),
            "gpus": sorted(set(env.gpus)),
            "kernel": env.kernel,
            "python": env.python_version,
            "packages": packages,
            "num_available_cores": env.placement.num_available_cores,
            "cgroup_quota_cores": env.placement.cgroup_quota_cores,
            "state": state,
        }
    )


def history(studies: Iterable[Study]) -> History:
    """Returns the series of some studies, in any order."""
    found: dict[tuple[str, ...], list[Observation]] = {}
    names: dict[tuple[str, ...], str] = {}
    left_out: list[str] = []
    for study in studies:
        for case in study.cases:
            reason = _why_left_out(case)
            if reason:
                left_out.append(f"{study.plan.study}, {case.label}: {reason}")
                continue
            env = _environments(case)[0]
            key = (*_key(case), machine_class(env))
            found.setdefault(key, []).append(_observe(study, case))
            names[key] = env.machine_name
    series = [
        _make_series(key, names[key], observations)
        for key, observations in sorted(found.items())
    ]
    return History(series=tuple(series), left_out=tuple(left_out))


def _key(case: Case) -> tuple[str, ...]:
    spec = case.spec
    content = spec.model_dump(mode="json", exclude=_NOT_SERIES)
    return spec.workload, spec.preset, case.label, identity.digest(content)


def _environments(case: Case) -> list[Environment]:
    return [
        entry.trial.env
        for entry in case.ok_entries
        if entry.trial is not None and entry.trial.env is not None
    ]


def _why_left_out(case: Case) -> str:
    if not case.ok_entries:
        return "no trial is ok"
    machines = {machine_class(env) for env in _environments(case)}
    if len(machines) != 1:
        return f"its trials ran on {len(machines)} machine classes"
    return ""


def _observe(study: Study, case: Case) -> Observation:
    throughput = table.of_trials(case, "throughput").estimate
    assert throughput is not None
    starts = [
        entry.trial.status.started_at
        for entry in case.ok_entries
        if entry.trial is not None and entry.trial.status is not None
    ]
    commits = {
        "" if env.machine_state is None else env.machine_state.commit_text
        for env in _environments(case)
    }
    return Observation(
        study=study.plan.study,
        date=min(starts),
        commit=commits.pop() if len(commits) == 1 else "several",
        throughput=throughput,
    )


def _make_series(
    key: tuple[str, ...], machine_name: str, observations: Sequence[Observation]
) -> Series:
    workload, preset, case, case_key, machine = key
    ordered = sorted(observations, key=lambda found: (found.date, found.study))
    return Series(
        workload=workload,
        preset=preset,
        case=case,
        case_key=case_key,
        machine=machine,
        machine_name=machine_name,
        observations=tuple(ordered),
    )
