"""The rule that decides whether a change made something slower, and by how much.

The hypotheses are about ``delta``, the slowdown that matters, not about zero: a change
passes if it is *shown* to be slower by less than ``delta``. Noise therefore makes a
gate inconclusive, and no noise makes it pass: a true slowdown of exactly ``delta``
passes with probability ``alpha``. The one-sided tests at level ``alpha`` are read off
one interval with confidence 1 - 2 ``alpha`` (Schuirmann, Journal of Pharmacokinetics
and Biopharmaceutics 15, 1987).

With [low, high] that interval of the log slowdown:

============  ==========================================
improve       high < 0, a kind of pass
pass          high < ln(1 + delta)
regress       low > 0 and high >= ln(1 + delta)
inconclusive  otherwise
============  ==========================================

So a slowdown that is certainly there, and certainly smaller than ``delta``, passes; and
one that is certainly there, and may be as large, is a regression.
``results/judging/power.py`` has the probability of each verdict.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

from results import errors
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.statistics.estimates import Estimate, Mean

DEFAULT_DELTA = 0.05
DEFAULT_ALPHA = 0.05
FEWEST_GENERATIONS = 2
OF_TWO_STUDIES = (
    "Welch's t over the generations of two studies, which were not measured in the "
    "same rounds"
)


class Verdict(str, enum.Enum):  # Python 3.10 has no StrEnum
    """What a gate says."""

    PASS = "pass"  # noqa: S105  # a verdict, no password
    IMPROVE = "improve"
    REGRESS = "regress"
    INCONCLUSIVE = "inconclusive"

    @property
    def is_pass(self) -> bool:
        """Whether the change may be merged: an improvement is a kind of pass."""
        return self in {Verdict.PASS, Verdict.IMPROVE}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A verdict, and what it was derived from."""

    verdict: Verdict  # What the rule says.
    # Ratio, above 1 where the change is slower, with the interval that was judged,
    # whose confidence is 1 - 2 ``alpha``.
    slowdown: Estimate
    delta: float  # The slowdown that matters, as a ratio: 0.05 is 5 %.
    alpha: float  # The probability that a slowdown of exactly ``delta`` passes.


def check_delta(delta: float) -> None:
    """Raises ResultsError unless ``delta`` is a ratio that can be judged."""
    if not 0 < delta <= 1:
        raise errors.ResultsError(
            f"delta is {delta!r}, must be more than 0 and at most 1: the slowdown that "
            "matters, such as 0.05 for 5 %"
        )


def check_alpha(alpha: float) -> None:
    """Raises ResultsError unless ``alpha`` is the level of a one-sided test."""
    if not 0 < alpha < 0.5:  # noqa: PLR2004  # an interval of confidence 0 or less
        raise errors.ResultsError(
            f"alpha is {alpha!r}, must be more than 0 and less than 0.5: the accepted "
            "probability of passing a slowdown of delta, such as 0.05"
        )


def verdict_of(low: float, high: float, *, margin: float) -> Verdict:
    """Returns the verdict on an interval of a loss, such as the log slowdown."""
    if high < 0:
        return Verdict.IMPROVE
    if high < margin:
        return Verdict.PASS
    return Verdict.REGRESS if low > 0 else Verdict.INCONCLUSIVE


def judge_groups(
    change: Sequence[float],
    baseline: Sequence[float],
    *,
    delta: float = DEFAULT_DELTA,
    alpha: float = DEFAULT_ALPHA,
) -> Judgement:
    """Judges a change against a baseline that was not measured in the same rounds.

    A weaker judgement: nothing that happened to the machine in between cancels.
    """
    mean = estimates.two_groups(change, baseline)
    return of_mean(mean, delta=delta, alpha=alpha, method=OF_TWO_STUDIES)


def of_mean(mean: Mean, *, delta: float, alpha: float, method: str) -> Judgement:
    """Judges a mean log slowdown."""
    check_delta(delta)
    check_alpha(alpha)
    found = mean.estimate(method, confidence=1 - 2 * alpha)
    if found.low is None or found.high is None:
        raise errors.ResultsError(
            f"there is {mean.n} generation, a verdict needs {FEWEST_GENERATIONS} or "
            "more of each side: one says nothing about the spread between processes; "
            "measure longer"
        )
    margin = math.log1p(delta)
    slowdown = estimates.from_logs(found)
    return Judgement(
        verdict=verdict_of(found.low, found.high, margin=margin),
        slowdown=slowdown,
        delta=delta,
        alpha=alpha,
    )
