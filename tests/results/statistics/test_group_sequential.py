"""Verdicts of an interval, and a gate that looks several times.

``tests/validation/statistics`` simulates how often gates err. A second implementation,
in plain numbers and one gate at a time, says the same: ``results/statistics`` judges
arrays of gates, with levels by quadrature. Here levels are checked against multivariate
normal probabilities, and quantiles are of scipy.stats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import noise_models
import numpy as np
import pytest
from noise_models import Change
from scipy import special, stats

import results
from results import statistics
from results.statistics import BLOCKS, PASSED, SUSTAINED, TAIL, Design, Verdict

LIMIT = math.log(1.05)
E = 1e-9
LOOKS = statistics.planned_looks(0.05)


def judged(logs, *, delta=0.05, alpha=0.05):
    mean = statistics.one_group(logs, "logs")
    return statistics.judge_mean(mean, delta=delta, alpha=alpha)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.10, -E, Verdict.IMPROVE),
        (-0.10, 0.0, Verdict.PASS),
        (-0.02, LIMIT - E, Verdict.PASS),
        (0.01, LIMIT - E, Verdict.PASS),  # slower for certain, and by little
        (0.01, LIMIT, Verdict.REGRESS),
        (E, 1.0, Verdict.REGRESS),
        (0.0, LIMIT, Verdict.INCONCLUSIVE),
        (-0.5, 0.5, Verdict.INCONCLUSIVE),  # noise alone never passes
    ],
)
def test_verdict_of_an_interval(low, high, expected):
    found = statistics.verdict_of(low, high, margin=LIMIT)

    assert expected is found
    assert found.is_pass == (found in (Verdict.PASS, Verdict.IMPROVE))


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([-0.10, -0.11, -0.12, -0.10], Verdict.IMPROVE),
        ([0.10, 0.11, 0.12, 0.10], Verdict.REGRESS),
        ([0.30, -0.30, 0.10, -0.10], Verdict.INCONCLUSIVE),
        ([0.0, 0.0], Verdict.PASS),
    ],
)
def test_verdict_of_repetitions(logs, expected):
    found = judged(logs)
    assert found.verdict is expected
    if any(logs):
        ends = stats.t.interval(0.9, 3, np.mean(logs), stats.sem(logs))
        assert pytest.approx((*np.exp(ends), 0.9)) == (
            found.slowdown.low,
            found.slowdown.high,
            found.slowdown.confidence,
        )


@pytest.mark.parametrize(
    ("logs", "options", "message"),
    [
        ([0.1], {}, "there is 1 run, a verdict needs 2 or more of each side"),
        ([0, 0], {"delta": 5}, "delta is 5, must be more than 0 and at most 1"),
        ([0, 0], {"alpha": 0.5}, "alpha is 0.5, must be more than 0 and less than"),
    ],
)
def test_what_cannot_be_judged_is_refused(logs, options, message):
    with pytest.raises(results.ResultsError, match=message):
        judged(logs, **options)


def test_blocks_alone_miss_a_step_in_fifty():
    logs = noise_models.simulate(
        "this machine",
        Change(every_50th=10.0, num_cases=None),
        num_gates=40,
        num_repetitions=6,
        num_cases=3,
        seed=5,
    )

    assert logs.blocks.mean() < math.log(1.2) / 2
    assert logs.sustained.mean() > 0.8 * math.log(1.2)


def test_a_case_without_numbers_stays_undecided():
    logs = np.full((1, LOOKS[-1], 2), np.nan)
    logs[0, :, 0] = np.resize([-0.001, 0.001, 0.0], LOOKS[-1])
    design = Design(looks=LOOKS, most=LOOKS[-1], delta=0.05, alpha=0.05)
    found = statistics.outcomes({BLOCKS: logs}, design)

    assert [PASSED, statistics.UNDECIDED] == found.of_cases[BLOCKS][0].tolist()
    assert statistics.fewest_to_pass(0.05) == found.decided_at[BLOCKS][0, 0]
    assert statistics.UNDECIDED == found.verdicts[0]


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_pass_needs_repetitions_that_show_what_slows_one_in_five(alpha):
    fewest = statistics.fewest_to_pass(alpha)

    assert 0.8**fewest < alpha < 0.8 ** (fewest - 3)
    assert fewest in statistics.planned_looks(alpha)


DELTA = ALPHA = 0.05
NAMES = {0: "inconclusive", 1: "pass", 2: "regress", 3: "improve"}
# Share of alpha for a false regression, and the margin in units of delta.
KINDS = {BLOCKS: (0.6, 1.0), SUSTAINED: (0.1, 3.0), TAIL: (0.05, None)}
SINGLES = 0.15

# By kind: of each case, the log slowdown of each repetition.
Logs = dict[statistics.Kind, list[list[float]]]
Interval = tuple[float, float, float]


@pytest.mark.parametrize("looks", [(3, 4, 6, 8, 12), (3, 5)])
@pytest.mark.parametrize("alpha", [0.05, 0.004])
def test_levels_spend_as_much_as_the_function_says(
    looks: tuple[int, ...], alpha: float
) -> None:
    """At each look of a whole gate, and of one that ended early."""
    bounds = special.ndtri(1 - np.asarray(statistics.nominal_levels(looks, 12, alpha)))
    times = np.asarray(looks) / 12
    correlation = np.sqrt(
        np.minimum.outer(times, times) / np.maximum.outer(times, times)
    )
    for number in range(1, len(looks) + 1):
        normal = stats.multivariate_normal(
            cov=correlation[:number, :number], maxpts=100_000, abseps=1e-7, seed=1
        )
        spent = 1 - normal.cdf(bounds[:number])
        assert spent == pytest.approx(alpha * times[number - 1] ** 1.5, abs=1e-5)


class Verdicts(NamedTuple):
    """What a gate says."""

    whole: str
    after: int  # Repetitions at which it was decided, or looked last.
    cases: list[tuple[str, Interval]]  # Of the blocks of each case.


def judge(logs: Logs, planned: Sequence[int]) -> Verdicts:
    number = len(logs[BLOCKS][0])
    looks = (*(look for look in planned if look < number), number)
    most = max(number, *planned)
    fewest = 1 + next(n for n in itertools.count(1) if 0.8**n <= ALPHA)
    passing = dict.fromkeys(looks, ALPHA / 2)
    late = tuple(look for look in looks if look >= fewest)
    if late:
        passing |= zip(
            late, statistics.nominal_levels(late, most, ALPHA / 2), strict=True
        )

    def level(share: float, look: int) -> float:
        levels = statistics.nominal_levels(looks, most, share * ALPHA)
        return levels[looks.index(look)]

    decided: dict[tuple[statistics.Kind, int], tuple[str, Interval]] = {}
    for look in looks:
        shown = {}
        for kind, cases in logs.items():
            share, margin = KINDS[kind]
            levels = [level(share / (len(cases) - n), look) for n in range(len(cases))]
            limit = None
            if margin is not None and look >= fewest:
                limit = math.log1p(margin * DELTA)
            now = judge_kind([of[:look] for of in cases], levels, passing[look], limit)
            shown |= {(kind, index): of for index, of in enumerate(now)}
        for key, (verdict, interval) in shown.items():
            if verdict != "inconclusive":
                decided.setdefault(key, (verdict, interval))
        whole = whole_of(logs, {key: of for key, (of, _) in decided.items()})
        if has_slow_processes([of[:look] for of in logs[BLOCKS]], level(SINGLES, look)):
            whole = "regress"
        if whole != "inconclusive":
            break
    indices = range(len(logs[BLOCKS]))
    found = [decided.get((BLOCKS, n), shown[BLOCKS, n]) for n in indices]
    return Verdicts(whole, look, found)


def whole_of(logs: Logs, verdicts: Mapping[tuple[statistics.Kind, int], str]) -> str:
    """Returns the verdict of a gate so far."""
    if "regress" in verdicts.values():
        return "regress"
    wanted = [
        (kind, index)
        for kind, cases in logs.items()
        if KINDS[kind][1] is not None
        for index in range(len(cases))
    ]
    return "pass" if all(key in verdicts for key in wanted) else "inconclusive"


def judge_kind(
    cases: Sequence[Sequence[float]],
    levels: Sequence[float],
    passing: float,
    limit: float | None,
) -> list[tuple[str, Interval]]:
    """Returns verdict and interval of each case; ``limit`` None: none can pass."""
    degrees = len(cases[0]) - 1
    means = [fmean(of) for of in cases]
    away = [[v - mean for v in of] for of, mean in zip(cases, means, strict=True)]
    wider = widening(away)
    errors = [
        wider * math.sqrt(math.fsum(v * v for v in of) / degrees / (degrees + 1))
        for of in away
    ]
    p_values = [
        float(stats.t.sf(mean / error, degrees))
        for mean, error in zip(means, errors, strict=True)
    ]
    slower = set()
    for level, index in zip(levels, np.argsort(p_values), strict=True):
        if p_values[index] > level:
            break
        slower.add(int(index))
    found = []
    for index, (mean, error) in enumerate(zip(means, errors, strict=True)):
        strict = float(stats.t.isf(levels[0], degrees)) * error
        high = mean + float(stats.t.isf(passing, degrees)) * error
        verdict = "inconclusive"
        if limit is not None and high < limit:
            verdict = "improve" if mean + strict < 0 else "pass"
        elif index in slower and mean > 0:
            verdict = "regress"
        found.append((verdict, (mean, mean - strict, high)))
    return found


def widening(cases: Sequence[Sequence[float]]) -> float:
    """Returns what repetitions that depend on each other make of the intervals."""
    number, num_cases = len(cases[0]), len(cases)
    total = math.fsum(v * v for of in cases for v in of)
    lagged = math.fsum(a * b for of in cases for a, b in itertools.pairwise(of))
    seen = lagged / total
    seen += (1 + 4 * seen) / number
    shared = math.fsum(math.fsum(of) ** 2 for of in zip(*cases, strict=True))
    shared /= num_cases * total
    told = shared**2 + (1 - shared) ** 2 / max(num_cases - 1, 1)
    bound = seen + 1.28 * math.sqrt(told / number)
    r = max(0.0, min(bound, 0.5), min(seen, 0.95))
    # The variance of the mean of all pairs, over the variance of independent ones.
    pairs = itertools.product(range(number), repeat=2)
    variance = math.fsum(r ** abs(a - b) for a, b in pairs) / number
    measured = 1 - (variance - 1) / (number - 1)
    return math.sqrt(variance / max(measured, 0.05))


def has_slow_processes(cases: Sequence[Sequence[float]], level: float) -> bool:
    """Whether repetitions that stand out are slower more often than by chance."""
    around = [median(of) for of in cases]
    residuals = [abs(v - a) for of, a in zip(cases, around, strict=True) for v in of]
    limit = max(4.0 * 1.4826 * median(residuals), math.log1p(DELTA))
    votes = [
        sum((v > limit) - (v < -limit) for v in of) for of in zip(*cases, strict=True)
    ]
    slower, faster = sum(v > 0 for v in votes), sum(v < 0 for v in votes)
    p_value = float(stats.binom.sf(slower - 1, slower + faster, 0.5))
    return slower > 0 and p_value <= level


@pytest.mark.parametrize(
    "change",
    [
        Change(),
        Change(every_step=math.log(1.05)),
        Change(every_50th=10.0),
        Change(process_in_five=math.log(1.5), num_cases=None),
    ],
    ids=["equal", "slower", "every 50th", "one process in five"],
)
def test_both_say_the_same_of_simulated_gates(change: Change) -> None:
    planned = statistics.planned_looks(ALPHA)
    logs = noise_models.simulate(
        "this machine", change, num_gates=2, num_repetitions=17, num_cases=3, seed=8
    )
    of = {BLOCKS: logs.blocks, SUSTAINED: logs.sustained, TAIL: logs.tail}
    design = statistics.Design(looks=planned, most=17, delta=DELTA, alpha=ALPHA)
    found = statistics.outcomes(of, design)
    for index in range(2):
        again = judge({kind: v[index].T.tolist() for kind, v in of.items()}, planned)

        assert NAMES[int(found.verdicts[index])] == again.whole
        assert int(found.ends[index]) == again.after
        for case, (verdict, interval) in enumerate(again.cases):
            assert NAMES[int(found.of_cases[BLOCKS][index, case])] == verdict
            at = int(found.decided_at[BLOCKS][index, case]) or again.after
            seen = statistics.look(of[BLOCKS][index], BLOCKS, design, number=at)
            ends = (seen.mean[case], seen.low[case], seen.high[case])
            assert ends == pytest.approx(interval, rel=1e-9)
