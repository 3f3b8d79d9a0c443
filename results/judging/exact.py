"""Counts of a gate: compared exactly, since each run of the same code has the same.

There is no interval, and no error rate: with no spread within a side, a difference
between the sides is one of the code. A number that varies within a side is no count,
and gives no verdict.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.figures import scaling
from results.statistics.judge import FEWEST_GENERATIONS, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.study.cases import Case, Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A count of both sides.

    Attributes:
      name: What was counted.
      before: Of the baseline.
      after: Of the change.
      n: Runs of the side that has fewer.
    """

    name: str
    before: float
    after: float
    n: int

    @property
    def verdict(self) -> Verdict:
        """Any rise is a regression: it is in the code, and not in the machine."""
        if self.after > self.before:
            return Verdict.REGRESS
        return Verdict.IMPROVE if self.after < self.before else Verdict.PASS

    @property
    def rise(self) -> float | None:
        """As a share of what it was; None from 0."""
        return self.after / self.before - 1 if self.before else None


def count_of(case: Case, other: Case, name: str) -> tuple[Count | None, str]:
    """Returns a count of a case and of its baseline, or why there is none."""

    def value(entry: Entry) -> float:
        found = {metric.name: metric for metric in entry.result.window_metrics}
        return found[name].value

    of_sides: Sequence[list[float]] = [
        list(scaling.values(side, value).values()) for side in (case, other)
    ]
    fewest = min(map(len, of_sides))
    if fewest < FEWEST_GENERATIONS:
        return None, (
            f"{fewest} run(s) of a side have it, and {FEWEST_GENERATIONS} show whether"
            " it is the same in each"
        )
    for values, side in zip(of_sides, ("this tree", "the baseline"), strict=True):
        low, high = min(values), max(values)
        if low != high:
            return None, (
                f"it varies between runs of {side}, from {low:.15g} to {high:.15g}, so"
                " it is no count; leave its --count out, or print what is the same in"
                " each run"
            )
    (after, *_), (before, *_) = of_sides
    return Count(name=name, before=before, after=after, n=fewest), ""
