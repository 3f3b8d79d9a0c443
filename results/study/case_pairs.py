"""Which cases of two studies are the same, and what differs between them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from results import errors
from results.records import program
from results.records.texts import label_of
from results.study.cases import Entry, Study, entry_of

if TYPE_CHECKING:
    from results.records.models import Environment, PlannedTrial
    from results.study.cases import Case

    CaseKey = tuple[str, int, int]
    Facts = collections.defaultdict[tuple[str, str], set[str]]


SETTINGS = (
    "preset",
    "data",
    "device",
    "order",
    "allocator",
    "variables",
    "options",
    "num_warmup_steps",
    "steps_per_sync",
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
    entries = [entry_of(planned, None, {}) for planned in trials]
    plan = stored.plan.model_copy(update={"study": "this tree"})
    planned = Study(plan=plan, entries=tuple(entries), problems=())
    both = pairs(planned, stored, are_quality_runs=are_quality_runs)
    return _differences({fingerprint}, stored, both, have_settings=True)


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
    matched = [(case, by_key[key_of(case)]) for case in cases if key_of(case) in by_key]
    if not matched:
        raise errors.ResultsError(
            f"no case is in both {first.plan.study!r} ({_names(cases)}) and"
            f" {second.plan.study!r} ({_names(others)}); compare studies with the same"
            " backends, replicas and batches"
        )
    return matched


def _names(cases: Sequence[Case]) -> str:
    return "; ".join(case.label for case in cases)


def differences(
    first: Study, second: Study, *, are_quality_runs: bool = False, is_gate: bool = True
) -> tuple[str, ...]:
    """Returns what must be equal and is not, one line each; see ``pairs``."""
    both = pairs(first, second, are_quality_runs=are_quality_runs)
    return _differences(_fingerprints(first), second, both, have_settings=is_gate)


def _differences(
    here: set[str],
    second: Study,
    both: Sequence[tuple[Case, Case]],
    *,
    have_settings: bool,
) -> tuple[str, ...]:
    there = _fingerprints(second)
    machine = f"{FINGERPRINT}: {_listed(here)} / {_listed(there)}"
    texts = [machine] * (here != there)
    for case, other in both:
        texts += _case_differences(case, other)
    for case, other in both if have_settings else ():
        texts += settings(case, other)
    return tuple(dict.fromkeys(texts))


def _case_differences(case: Case, other: Case) -> Iterator[str]:
    one, two = case.spec, other.spec
    if one.workload_version != two.workload_version:
        yield f"workload version: {one.workload_version!r} / {two.workload_version!r}"
    if one.cores_per_replica != two.cores_per_replica:
        cores = f"{one.cores_per_replica} / {two.cores_per_replica}"
        yield f"placement: cores_per_replica {cores}"
    for name in _PLACEMENT_FIELDS:
        here, there = (
            {getattr(env.placement, name) for env in case_of_pair.environments}
            for case_of_pair in (case, other)
        )
        if here and there and here != there:
            yield f"placement: {name} {_listed(here)} / {_listed(there)}"


def _fingerprints(study: Study) -> set[str]:
    """Returns the fingerprints of the machines that measured a study."""
    return {
        entry.env.fingerprint
        for entry in study.planned
        if entry.is_ok and entry.env is not None
    }


def _listed(values: set[Any] | set[str]) -> str:
    return "+".join(sorted(map(str, values))) or "none"


def settings(first: Case, second: Case) -> tuple[str, ...]:
    """Returns the settings in which two cases differ, one line each."""
    texts = []
    for name in SETTINGS:
        here, there = getattr(first.spec, name), getattr(second.spec, name)
        if here != there:
            texts.append(f"{name}: {label_of(here)} / {label_of(there)}")
    return tuple(texts)


# Only ok trials of cases that both studies have count; a fact may have several values.

MACHINE, SOFTWARE, CODE, SETTING_FACTS = "machine", "software", "code", "settings"
GROUPS = (MACHINE, SOFTWARE, CODE, SETTING_FACTS)
NOT_RECORDED: Final = "not recorded"
_OWN_PACKAGE = "replicator-harness"
_DIGEST_LENGTH = 9
_DRAWN_PER_TRIAL = {"PYTHONHASHSEED"}
_OF_SOFTWARE = {"glibc_version", "gpu_driver"}
_YES_NO = {True: "yes", False: "no"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyDifference:
    """One fact that differs."""

    group: str  # One of ``GROUPS``.
    name: str  # Of the fact.
    first: str  # Its values in the first study, joined by commas.
    second: str  # Its values in the second.

    @property
    def text(self) -> str:
        return f"{self.name} {self.first} / {self.second}"


def study_differences(first: Study, second: Study) -> tuple[StudyDifference, ...]:
    """Returns what differs, by group; see ``case_pairs.pairs`` for what raises."""
    both = [
        (case, other)
        for case, other in pairs(first, second)
        if case.ok_entries and other.ok_entries
    ]
    here = _facts(case for case, _ in both)
    there = _facts(other for _, other in both)
    listed = [
        StudyDifference(
            group=group,
            name=name,
            first=", ".join(sorted(here[group, name])) or NOT_RECORDED,
            second=", ".join(sorted(there[group, name])) or NOT_RECORDED,
        )
        for group, name in dict.fromkeys([*here, *there])
        if here[group, name] != there[group, name]
    ]
    return tuple(sorted(listed, key=lambda difference: GROUPS.index(difference.group)))


def why_not_comparable(first: Study, second: Study) -> tuple[str, ...]:
    """Returns why no ratio of two studies can be judged; one line each."""
    reasons = differences(first, second, is_gate=False)
    others = tuple(text for text in reasons if not text.startswith(FINGERPRINT))
    if others == reasons:
        return reasons
    all_differences = study_differences(first, second)
    facts = [
        difference.text
        for difference in all_differences
        if difference.group in (MACHINE, SOFTWARE)
        or difference.name in program.IDENTITY
    ]
    if facts:
        return (f"the machines differ: {', '.join(facts)}", *others)
    is_own_version = any(
        difference.name == _OWN_PACKAGE for difference in all_differences
    )
    return others if is_own_version else reasons


def _facts(cases: Iterable[Case]) -> Facts:
    facts: Facts = collections.defaultdict(set)
    for case in cases:
        for entry in case.ok_entries:
            for group, name, value in _facts_of(entry):
                facts[group, name].add(value)
    return facts


def _facts_of(entry: Entry) -> Iterator[tuple[str, str, str]]:
    spec = entry.spec
    if entry.env is not None:
        yield from _environment_facts(entry.env)
    yield CODE, "workload version", spec.workload_version
    yield CODE, f"measured code of {spec.backend}", spec.code_digest[:_DIGEST_LENGTH]
    for name in SETTINGS:
        value = getattr(spec, name)
        if isinstance(value, dict):
            yield from ((SETTING_FACTS, key, str(fact)) for key, fact in value.items())
        elif value is not None:
            yield SETTING_FACTS, name, str(getattr(value, "value", value))


def _environment_facts(env: Environment) -> Iterator[tuple[str, str, str]]:
    placement = env.placement
    yield MACHINE, "processor", env.cpu_model
    yield MACHINE, "logical cores", str(env.num_logical_cores)
    yield MACHINE, "available cores", str(placement.num_available_cores)
    if placement.cgroup_quota_cores is not None:
        yield MACHINE, "cores of the cgroup", f"{placement.cgroup_quota_cores:g}"
    yield MACHINE, "memory", f"{env.memory_bytes / 2**30:.0f} GiB"
    yield from ((MACHINE, "GPU", gpu) for gpu in env.gpus)
    yield MACHINE, "kernel", env.kernel
    yield SOFTWARE, "Python", env.python_version
    for name, version in env.packages.items():
        yield CODE if name == _OWN_PACKAGE else SOFTWARE, name, version
    for name, value in env.environment_variables.items():
        if name not in _DRAWN_PER_TRIAL:
            yield SETTING_FACTS, name, value
    state = env.machine_state
    if state is None:
        return
    for name, value in state.without_code().items():
        if value is not None:
            group = SOFTWARE if name in _OF_SOFTWARE else MACHINE
            text = _YES_NO[value] if isinstance(value, bool) else str(value)
            yield group, name.removeprefix("is_").replace("_", " "), text
    if state.container is not None:
        yield SOFTWARE, "container", state.container
    if state.git_commit is not None:
        yield CODE, "git commit", state.commit_text
