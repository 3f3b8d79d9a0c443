"""Verdicts of an interval, and a gate that looks several times.

``tests/validation/statistics`` simulates how often gates err.
"""

import math

import noise_models
import numpy as np
import pytest
from noise_models import Change
from scipy import stats

from results import errors
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import BLOCKS, PASSED, Design, Verdict

LIMIT = math.log(1.05)
E = 1e-9
LOOKS = group_sequential.planned_looks(0.05)


def judged(logs, *, delta=0.05, alpha=0.05):
    mean = estimates.one_group(logs, "logs")
    return group_sequential.judge_mean(mean, delta=delta, alpha=alpha)


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
    found = group_sequential.verdict_of(low, high, margin=LIMIT)

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
    with pytest.raises(errors.ResultsError, match=message):
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
    found = group_sequential.outcomes({BLOCKS: logs}, design)

    assert [PASSED, group_sequential.UNDECIDED] == found.of_cases[BLOCKS][0].tolist()
    assert group_sequential.fewest_to_pass(0.05) == found.decided_at[BLOCKS][0, 0]
    assert group_sequential.UNDECIDED == found.verdicts[0]


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_pass_needs_repetitions_that_show_what_slows_one_in_five(alpha):
    fewest = group_sequential.fewest_to_pass(alpha)

    assert 0.8**fewest < alpha < 0.8 ** (fewest - 3)
    assert fewest in group_sequential.planned_looks(alpha)
