"""One case of a gate with its verdicts, the worst of which is that of the case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.records import measuring
from results.records.models import TrialStatus
from results.statistics.group_sequential import FEWEST_REPETITIONS, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from results.statistics.group_sequential import Judgement
    from results.study.cases import Case


WORST_FIRST = (Verdict.REGRESS, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVE)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the worst of one verdict or more."""
    return min(verdicts, key=WORST_FIRST.index)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JudgedCase:
    """One case of the change."""

    name: str  # Backend, replicas and scaling modes; or the name of a micro-benchmark.
    # The verdict on the metric; None where either side has fewer than two repetitions.
    judgement: Judgement | None
    # Why there is no verdict; of runs that were trained, how many failed.
    reason: str = ""
    case: Case | None = None  # The case; None of a micro-benchmark.
    # Verdicts on what else was measured of the case, by what it is.
    others: Mapping[str, Judgement] = dataclasses.field(default_factory=dict)
    # A count of both sides, of a case that is one; it has no judgement.
    count: Count | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The worst of its verdicts; None where there is none."""
        if self.count is not None:
            return self.count.verdict
        if self.judgement is None:
            return None
        found = {of.verdict for of in (self.judgement, *self.others.values())}
        # What cannot pass by itself is inconclusive, and only ever a regression.
        if not found & {Verdict.REGRESS, Verdict.INCONCLUSIVE}:
            return self.judgement.verdict
        return worst(found)


def name_of(case: Case) -> str:
    """Returns backend, replicas and scaling modes of a case."""
    modes = "+".join(mode.value for mode in case.modes)
    return f"{case.spec.backend} x{case.spec.num_replicas}, {modes}"


# There is no interval, and no error rate: with no spread within a side, a difference
# between the sides is one of the code. A number that varies within a side is no count,
# and gives no verdict.

ROSE, FELL = "rose", "fell"
"""What a count did that nobody asked to judge."""
_COUNTED = (TrialStatus.OK.value, TrialStatus.DISCARDED.value)
_SMALL = 5e-4  # below it, one digit would say 0.0 %


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A count of both sides."""

    name: str  # What was counted.
    before: float  # Of the baseline.
    after: float  # Of the change.
    n: int  # Runs of the side that has fewer.
    # Whether somebody said that it matters; otherwise it is shown only.
    is_judged: bool = True

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same."""
        return self.before == self.after

    @property
    def verdict(self) -> Verdict:
        """Any rise is a regression: it is in the code, and not in the machine."""
        if self.is_equal or not self.is_judged:
            return Verdict.PASS
        return Verdict.REGRESS if self.after > self.before else Verdict.IMPROVE

    @property
    def word(self) -> str:
        """Its verdict; of one that is only shown, what it did."""
        if self.is_judged or self.is_equal:
            return self.verdict.value
        return ROSE if self.after > self.before else FELL

    @property
    def rise(self) -> float | None:
        """As a share of what it was; None from 0."""
        return self.after / self.before - 1 if self.before else None


def compare(
    pairs: Sequence[tuple[Case, Case]], names: Collection[str]
) -> tuple[tuple[JudgedCase, ...], tuple[JudgedCase, ...]]:
    """Returns the counts of all cases: what is judged, and what is only shown."""
    judged: list[JudgedCase] = []
    noted: list[JudgedCase] = []
    for case, other in pairs:
        program = case.spec.program
        found = measuring.UNITS if program is None else program.count_names
        for name in found:
            is_judged = program is not None or name in names
            if not is_judged and not _values(case, name):
                continue
            count, reason = count_of(case, other, name, is_judged=is_judged)
            (judged if is_judged else noted).append(
                JudgedCase(
                    name=f"{name_of(case)}: {measuring.step_count_words(name)}",
                    case=case,
                    judgement=None,
                    reason=reason,
                    count=count,
                )
            )
    return tuple(judged), tuple(noted)


def count_of(
    case: Case, other: Case, name: str, *, is_judged: bool = True
) -> tuple[Count | None, str]:
    """Returns a count of a case and of its baseline, or why there is none."""
    sides = {"this tree": _values(case, name), "the baseline": _values(other, name)}
    for side, values in sides.items():
        if not values:
            return None, f"no run of {side} has it"
    fewest = min(map(len, sides.values()))
    # Of a step nobody has to believe the program: what counts it was looked at.
    if fewest < FEWEST_REPETITIONS and name not in measuring.UNITS:
        return None, (
            f"{fewest} run(s) of a side have it, and {FEWEST_REPETITIONS} show whether"
            " it is the same in each"
        )
    for side, values in sides.items():
        low, high = min(values), max(values)
        if low != high:
            return None, (
                f"it varies between runs of {side}, from {low:.15g} to {high:.15g}, so"
                " it is no count"
                + "; leave its --count out, or print what is the same in each run"
                * is_judged
            )
    (after, *_), (before, *_) = sides.values()
    return Count(
        name=name, before=before, after=after, n=fewest, is_judged=is_judged
    ), ""


def share_text(before: float, after: float) -> str:
    """Writes a change as a share of what it was: ``+3.0 %``; ``-`` from 0."""
    if not before:
        return "-"
    share = after / before - 1
    if share and abs(share) < _SMALL:
        return f"{100 * share:+.2g} %"
    return f"{100 * share:+.1f} %"


def exact_text(before: float, after: float) -> str:
    """Writes a count of both sides, such as ``exact: 1024 to 1056``."""
    if before == after:
        return f"exact: {after:.15g}"
    return f"exact: {before:.15g} to {after:.15g}"


def _values(case: Case, name: str) -> list[float]:
    """The values of a count, of each trial that has it, discarded ones included.

    What others did on the machine changes no count.
    """
    results = [
        entry.trial.result
        for entry in case.entries
        if entry.state in _COUNTED and entry.trial is not None
    ]
    return [
        metric.value
        for result in results
        if result is not None
        for metric in result.window_metrics
        if metric.name == name
    ]
