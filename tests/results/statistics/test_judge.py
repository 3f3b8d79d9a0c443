"""The verdict rule: what the interval of a log slowdown means."""

import math

import numpy as np
import pytest
from scipy import stats

from results import errors
from results.statistics import estimates, judge
from results.statistics.judge import Verdict

LIMIT = math.log(1.05)
E = 1e-9


def judged(logs, *, delta=0.05, alpha=0.05):
    """The verdict on the mean of some generations."""
    mean = estimates.one_group(logs, "logs")
    return judge.of_mean(mean, delta=delta, alpha=alpha, method="")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.10, -E, Verdict.IMPROVE),
        (-0.10, 0.0, Verdict.PASS),
        (-0.02, LIMIT - E, Verdict.PASS),
        (0.01, LIMIT - E, Verdict.PASS),  # slower for certain, and by little
        (0.01, LIMIT, Verdict.REGRESS),
        (E, 1.0, Verdict.REGRESS),
        (0.06, 0.09, Verdict.REGRESS),
        (0.0, LIMIT, Verdict.INCONCLUSIVE),
        (-0.5, 0.5, Verdict.INCONCLUSIVE),  # noise alone never passes
    ],
)
def test_verdict_of_an_interval(low, high, expected):
    """Every part of the rule, at its ends."""
    assert judge.verdict_of(low, high, margin=math.log(1.05)) is expected


def test_an_improvement_is_a_kind_of_pass():
    """The two others are not."""
    assert [Verdict.PASS, Verdict.IMPROVE] == [v for v in Verdict if v.is_pass]


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_interval_has_confidence_of_one_minus_twice_alpha(alpha):
    """Two one-sided tests at level alpha."""
    logs = [0.01, 0.03, -0.01, 0.02]
    found = judged(logs, alpha=alpha)
    low, high = stats.t.interval(1 - 2 * alpha, 3, np.mean(logs), stats.sem(logs))

    assert math.exp(low) == pytest.approx(found.slowdown.low)
    assert math.exp(high) == pytest.approx(found.slowdown.high)
    assert pytest.approx(1 - 2 * alpha) == found.slowdown.confidence
    assert (4, 0.05, alpha) == (found.slowdown.n, found.delta, found.alpha)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([-0.10, -0.11, -0.12, -0.10], Verdict.IMPROVE),
        ([0.01, 0.00, -0.01, 0.00], Verdict.PASS),
        ([0.10, 0.11, 0.12, 0.10], Verdict.REGRESS),
        ([0.30, -0.30, 0.10, -0.10], Verdict.INCONCLUSIVE),
        ([0.0, 0.0], Verdict.PASS),
    ],
)
def test_verdict_of_generations(logs, expected):
    """Positive is slower."""
    assert judged(logs).verdict is expected


@pytest.mark.parametrize(
    ("logs", "options", "message"),
    [
        ([0.1], {}, r"there is 1 generation, a verdict needs 2 or more of each side"),
        ([0, 0], {"delta": 0}, r"delta is 0, must be more than 0 and at most 1: the"),
        ([0, 0], {"delta": 5}, r"delta is 5, must be more than 0 and at most 1"),
        ([0, 0], {"delta": math.nan}, r"delta is nan, must be"),
        ([0, 0], {"alpha": 0}, r"alpha is 0, must be more than 0 and less than 0\.5"),
        ([0, 0], {"alpha": 0.5}, r"alpha is 0\.5, must be more than 0 and less than"),
    ],
)
def test_what_cannot_be_judged_is_refused(logs, options, message):
    with pytest.raises(errors.ResultsError, match=message):
        judged(logs, **options)
