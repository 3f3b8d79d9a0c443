"""Studies of the same case over time.

A case is all that a spec says, except its code, repetition, seed and number of steps.
Figures of different machines are never compared: each is of a machine class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from results.figures import scaling
from results.records import identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.records.models import Environment
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Study

_OWN_PACKAGE = "replicator-harness"
_NOT_CASE = {
    "schema_version",
    "code_digest",
    "repetition_index",
    "seed",
    "num_measured_steps",
    "is_evaluated",
}


class Observation(NamedTuple):
    """One case of one study."""

    workload: str
    preset: str
    label: str  # Backend, replicas and batch, in words.
    case_key: str  # Digest of all that the case is; equal on all machines.
    date: str  # Start of its first trial, RFC 3339, UTC.
    study: str  # Name of the study.
    machine: str  # The machine class, a digest.
    machine_name: str  # CPU, cores and GPUs, in words.
    commit: str  # As ``MachineState.commit_text``; empty if unknown.
    throughput: Estimate  # With its interval.


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


def history(studies: Iterable[Study]) -> tuple[list[Observation], list[str]]:
    """Returns the cases of some studies, and why others have no place, a line each.

    By case, and in order of time.
    """
    found, left_out = [], []
    for study in studies:
        for case in study.cases:
            machines = {machine_class(env) for env in case.environments}
            if case.ok_entries and len(machines) == 1:
                found.append(_observe(study, case, *machines))
                continue
            reason = f"its trials ran on {len(machines)} machine classes"
            reason = reason if case.ok_entries else "no trial is ok"
            left_out.append(f"{study.plan.study}, {case.label}: {reason}")
    return sorted(found, key=lambda of: of[:7]), left_out


def _observe(study: Study, case: Case, machine: str) -> Observation:
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
        workload=case.spec.workload,
        preset=case.spec.preset,
        label=case.label,
        case_key=identity.digest(case.spec_without(_NOT_CASE)),
        date=min(starts),
        study=study.plan.study,
        machine=machine,
        machine_name=case.environments[0].machine_name,
        commit=commits.pop() if len(commits) == 1 else "several",
        throughput=throughput,
    )
