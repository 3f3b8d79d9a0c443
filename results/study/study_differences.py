"""In what two studies differ: machine, software, settings of the system, and code.

Only trials that are ok count, and only those of cases that both studies have: what
another case needed says nothing about a ratio. A fact that varies within a study has
several values.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from results.records import program
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.records.models import Environment
    from results.study.cases import Case, Entry, Study

    # Values by group and name of a fact.
    Facts = dict[tuple[str, str], set[str]]

MACHINE, SOFTWARE, CODE, SETTINGS = "machine", "software", "code", "settings"
NOT_RECORDED: Final = "not recorded"
_OWN_PACKAGE = "replicator-harness"
_DIGEST_LENGTH = 9
_DRAWN_PER_TRIAL = {"PYTHONHASHSEED"}
_OF_SOFTWARE = {"glibc_version", "gpu_driver"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyDifference:
    """One fact that differs."""

    group: str  # ``machine``, ``software``, ``code`` or ``settings``.
    name: str  # Of the fact.
    first: str  # Its values in the first study, joined by commas.
    second: str  # Its values in the second.

    @property
    def text(self) -> str:
        """The difference in one line."""
        return f"{self.name} {self.first} / {self.second}"


def of_studies(first: Study, second: Study) -> tuple[StudyDifference, ...]:
    """Returns what differs, by group; see ``case_pairs.pairs`` for what raises."""
    both = [
        (case, other)
        for case, other in case_pairs.pairs(first, second)
        if case.ok_entries and other.ok_entries
    ]
    here = _facts([case for case, _ in both])
    there = _facts([case for _, case in both])
    names = dict.fromkeys([*here, *there])
    order = {MACHINE: 0, SOFTWARE: 1, CODE: 2, SETTINGS: 3}
    return tuple(
        StudyDifference(
            group=group,
            name=name,
            first=_listed(here.get((group, name), set())),
            second=_listed(there.get((group, name), set())),
        )
        for group, name in sorted(names, key=lambda key: order[key[0]])
        if here.get((group, name), set()) != there.get((group, name), set())
    )


def why_not_comparable(first: Study, second: Study) -> tuple[str, ...]:
    """Returns why no ratio of two studies can be judged, one line each; often none.

    A machine fingerprint that differs is explained by the facts behind it. That of
    studies which differ in the version of this package alone is no reason: the code is
    what is compared.
    """
    reasons = case_pairs.differences(first, second)
    others = tuple(
        text for text in reasons if not text.startswith(case_pairs.FINGERPRINT)
    )
    if others == reasons:
        return reasons
    found = of_studies(first, second)
    facts = [of.text for of in found if _is_of_machine(of)]
    if facts:
        return (f"the machines differ: {', '.join(facts)}", *others)
    is_own_version = any(of.name == _OWN_PACKAGE for of in found)
    return others if is_own_version else reasons


def _is_of_machine(found: StudyDifference) -> bool:
    """Whether a fact is part of a fingerprint."""
    return found.group in (MACHINE, SOFTWARE) or found.name in program.IDENTITY


def _listed(values: set[str]) -> str:
    return ", ".join(sorted(values)) or NOT_RECORDED


def _facts(cases: list[Case]) -> Facts:
    facts: Facts = {}
    for case in cases:
        for entry in case.ok_entries:
            for group, name, value in _facts_of(entry):
                facts.setdefault((group, name), set()).add(value)
    return facts


def _facts_of(entry: Entry) -> Iterator[tuple[str, str, str]]:
    spec = entry.spec
    env = None if entry.trial is None else entry.trial.env
    if env is not None:
        yield from _of_environment(env)
    yield CODE, "workload version", spec.workload_version
    yield CODE, f"measured code of {spec.backend}", spec.code_digest[:_DIGEST_LENGTH]
    for name in case_pairs.SETTINGS:
        value = getattr(spec, name)
        if isinstance(value, dict):
            yield from ((SETTINGS, key, str(of)) for key, of in value.items())
        elif value is not None:
            yield SETTINGS, name, str(getattr(value, "value", value))


def _of_environment(env: Environment) -> Iterator[tuple[str, str, str]]:
    place = env.placement
    yield MACHINE, "processor", env.cpu_model
    yield MACHINE, "logical cores", str(env.num_logical_cores)
    yield MACHINE, "available cores", str(place.num_available_cores)
    if place.cgroup_quota_cores is not None:
        yield MACHINE, "cores of the cgroup", f"{place.cgroup_quota_cores:g}"
    yield MACHINE, "memory", f"{env.memory_bytes / 2**30:.0f} GiB"
    yield from ((MACHINE, "GPU", gpu) for gpu in env.gpus)
    yield MACHINE, "kernel", env.kernel
    yield SOFTWARE, "Python", env.python_version
    for name, version in env.packages.items():
        yield CODE if name == _OWN_PACKAGE else SOFTWARE, name, version
    for name, value in env.environment_variables.items():
        if name not in _DRAWN_PER_TRIAL:
            yield SETTINGS, name, value
    state = env.machine_state
    if state is None:
        return
    for name, value in state.without_code().items():
        if value is not None:
            group = SOFTWARE if name in _OF_SOFTWARE else MACHINE
            yield group, name.removeprefix("is_").replace("_", " "), _text(value)
    if state.container is not None:
        yield SOFTWARE, "container", state.container
    if state.git_commit is not None:
        yield CODE, "git commit", state.commit_text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
