"""A gate on what is learned: quality runs of a change beside its baseline's.

Both sides train with the same seeds. The loss of a seed is how much worse the change
ended, relative to the median quality q of the baseline, which is taken as known.

The *median* loss over seeds is judged, by its exact interval from ordered losses (the
sign test): with one run in five that fails, a mean loss of exactly ``delta`` passed in
0.31 to 0.60 of gates. The median says nothing of failures, so their share is judged
too: a run *fails* if it ends worse than q by more than ``FAILED`` of it. Of the seeds
for which one side alone failed, as many would be of either (McNemar, Psychometrika 12,
1947). Of ``alpha``, three quarters are for the median, one for failures.

Against a stored study runs are paired in the order of their seeds.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from results.figures import learning_gains
from results.statistics import group_sequential
from results.statistics.estimates import Estimate
from results.statistics.group_sequential import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.gate_metrics import Metric, Rule
    from results.records.models import QualityMetric
    from results.study.cases import Case, Key


FAILED = 0.5
OF_MEDIAN, OF_FAILURES = 0.75, 0.25
_MEDIAN = "exact interval of the median over seeds (sign test) of the loss relative to"
PAIRED = f"{_MEDIAN} the baseline's median quality, both sides with the same seeds"
UNPAIRED = f"{_MEDIAN} the baseline's median quality, of two studies"


def fewest_seeds(alpha: float) -> int:
    """Returns how many seeds a verdict needs: that all are on one side is chance."""
    return math.ceil(-math.log2(OF_MEDIAN * alpha))


def judged(
    case: Case, other: Case, rule: Rule, *, is_paired: bool
) -> tuple[Judgement | None, str]:
    here, there = (_final(side, rule.metric) for side in (case, other))
    if is_paired:
        keys = here.keys() & there.keys()
        here, there = ({key: of[key] for key in keys} for of in (here, there))
    if reason := _why_not(here, there, fewest_seeds(rule.alpha)):
        return None, reason
    sign = 1.0 if rule.metric.is_cost else -1.0
    median = statistics.median(_costs(there, sign))
    ours, theirs = (
        [cost / abs(median) for cost in _costs(side, sign)] for side in (here, there)
    )
    return judge_losses(ours, theirs, rule, is_paired=is_paired)


def judge_losses(
    ours: Sequence[float], theirs: Sequence[float], rule: Rule, *, is_paired: bool
) -> tuple[Judgement, str]:
    """Judges costs of runs, relative to the baseline's median; says how many fail."""
    # Where both failed, neither is worse.
    losses = sorted(
        0.0 if a == b else a - b for a, b in zip(ours, theirs, strict=False)
    )
    low, high = (
        _median_bounds(losses, level) for level in (OF_MEDIAN * rule.alpha, rule.alpha)
    )
    verdict = group_sequential.verdict_of(low[0], high[1], margin=rule.delta)
    p_value, failures = _failures(ours, theirs)
    if p_value <= OF_FAILURES * rule.alpha:
        verdict = Verdict.REGRESS
    slowdown = Estimate(
        value=1 + statistics.median(losses),
        low=1 + low[0],
        high=1 + high[1],
        n=len(losses),
        unit="",
        method=PAIRED if is_paired else UNPAIRED,
        confidence=1 - 2 * rule.alpha,
    )
    judgement = Judgement(
        verdict=verdict, slowdown=slowdown, delta=rule.delta, alpha=rule.alpha
    )
    return judgement, failures


def _median_bounds(ordered: Sequence[float], level: float) -> tuple[float, float]:
    """Returns bounds each of which the median is beyond with a probability of level."""
    from scipy import special

    n = len(ordered)
    ranks = [k for k in range(1, n + 1) if special.bdtr(k - 1, n, 0.5) <= level]
    if not ranks:
        return -math.inf, math.inf
    return ordered[ranks[-1] - 1], ordered[n - ranks[-1]]


def _failures(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """Returns how probable more failures are, were both sides equal, and their text."""
    from scipy import special

    limit = statistics.median(theirs) + FAILED
    failed = [(a > limit, b > limit) for a, b in zip(ours, theirs, strict=False)]
    more = sum(a and not b for a, b in failed)
    fewer = sum(b and not a for a, b in failed)
    p_value = float(special.bdtrc(more - 1, more + fewer, 0.5)) if more else 1.0
    if not any(map(any, failed)):
        return p_value, ""
    here, there = map(sum, zip(*failed, strict=True))
    return p_value, (
        f"{here} of {len(failed)} runs of the change fail (end worse than the"
        f" baseline's median by more than {FAILED:.0%}), {there} of the"
        f" baseline: p = {p_value:.2g} (sign test)"
    )


def _final(case: Case, metric: Metric) -> dict[Key, QualityMetric | None]:
    """The quality of each run at its end, None of one that failed."""
    ended: dict[Key, QualityMetric | None] = {
        entry.key: learning_gains.final(entry, metric.name) for entry in case.ok_entries
    }
    return ended | {entry.key: None for entry in case.failed_entries}


def _costs(metrics: dict[Key, QualityMetric | None], sign: float) -> list[float]:
    """Costs by seed, infinite of a run that failed."""
    ordered = (metrics[key] for key in sorted(metrics))
    return [math.inf if metric is None else sign * metric.value for metric in ordered]


def _why_not(
    here: dict[Key, QualityMetric | None],
    there: dict[Key, QualityMetric | None],
    needed: int,
) -> str:
    """Why two groups of runs give no verdict; empty if they do."""
    fewest = min(len(here), len(there))
    if fewest < needed:
        return f"{fewest} seed(s) have both, a verdict needs {needed} or more"
    protocols = {
        (metric.protocol, metric.num_examples)
        for metric in (*here.values(), *there.values())
        if metric is not None
    }
    if len(protocols) > 1:
        listed = " / ".join(
            f"{protocol or 'none'} ({number} examples)"
            for protocol, number in sorted(protocols)
        )
        return f"the protocols of the metric differ, so it is not comparable: {listed}"
    ended = [metric.value for metric in there.values() if metric is not None]
    if 2 * len(ended) <= len(there):
        return "half of the baseline's runs failed or more, so there is no median"
    median = statistics.median(ended)
    if median <= 0:
        return (
            f"the baseline's median is {median:.4g}, and a loss relative to it has no"
            " meaning; train longer"
        )
    return ""
