"""Studies of the same case over time.

A *series* has one case (all that a spec says, except its code, repetition, seed and
number of steps) on one machine class (``machine_class``): figures of different machines
are never compared.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.figures import scaling
from results.records import identity

if TYPE_CHECKING:
    from collections.abc import Iterable

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
            machines = {machine_class(env) for env in case.environments}
            reason = f"its trials ran on {len(machines)} machine classes"
            if not case.ok_entries or len(machines) != 1:
                reason = reason if case.ok_entries else "no trial is ok"
                left_out.append(f"{study.plan.study}, {case.label}: {reason}")
                continue
            spec, case_key = case.spec, identity.digest(case.spec_without(_NOT_SERIES))
            key = (spec.workload, spec.preset, case.label, case_key, *machines)
            found.setdefault(key, []).append(_observe(study, case))
            names[key] = case.environments[0].machine_name
    series = [
        Series(
            workload=key[0],
            preset=key[1],
            case=key[2],
            case_key=key[3],
            machine=key[4],
            machine_name=names[key],
            observations=tuple(sorted(of, key=lambda one: (one.date, one.study))),
        )
        for key, of in sorted(found.items())
    ]
    return History(series=tuple(series), left_out=tuple(left_out))


def _observe(study: Study, case: Case) -> Observation:
    throughput = scaling.of_trials(case, "throughput").estimate
    assert throughput is not None
    starts = [
        entry.trial.status.started_at
        for entry in case.ok_entries
        if entry.trial is not None and entry.trial.status is not None
    ]
    commits = {
        "" if env.machine_state is None else env.machine_state.commit_text
        for env in case.environments
    }
    return Observation(
        study=study.plan.study,
        date=min(starts),
        commit=commits.pop() if len(commits) == 1 else "several",
        throughput=throughput,
    )
