"""One case of a gate with its verdicts, the worst of which is that of the case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.statistics.group_sequential import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from results.judging.exact import Count
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
    # The verdict on the metric; None where either side has fewer than two generations.
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
