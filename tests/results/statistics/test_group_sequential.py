"""Verdicts of an interval, and a gate that looks several times.

``tests/validation/statistics`` simulates how often gates err.
"""

import math

import noise_models
import numpy as np
import pytest
from noise_models import Change
from scipy import special, stats

from results import errors
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import PASSED, TURNS, Design, Verdict

LIMIT = math.log(1.05)
E = 1e-9
LOOKS = group_sequential.planned_looks(0.05)


def judged(logs, *, delta=0.05, alpha=0.05):
    mean = estimates.one_group(logs, "logs")
    return group_sequential.of_mean(mean, delta=delta, alpha=alpha, method="")


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


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_interval_has_confidence_of_one_minus_twice_alpha(alpha):
    """Two one-sided tests at level alpha."""
    logs = [0.01, 0.03, -0.01, 0.02]
    found = judged(logs, alpha=alpha)
    low, high = stats.t.interval(1 - 2 * alpha, 3, np.mean(logs), stats.sem(logs))
    expected = math.exp(low), math.exp(high), 1 - 2 * alpha

    assert pytest.approx(expected) == (
        found.slowdown.low,
        found.slowdown.high,
        found.slowdown.confidence,
    )
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


def test_turns_alone_miss_a_step_in_fifty():
    """A mean of logarithms sees a part of what it costs: the reason for stretches."""
    logs = noise_models.simulate(
        "this machine",
        Change(every_50th=10.0, num_cases=None),
        num_gates=40,
        num_generations=6,
        num_cases=3,
        seed=5,
    )

    assert logs.turns.mean() < math.log(1.2) / 2
    assert logs.sustained.mean() > 0.8 * math.log(1.2)


def test_levels_spend_the_error_and_no_more():
    """Brownian motion crosses the bounds of all looks with the stated probability."""
    looks, alpha = (3, 4, 6, 8, 12), 0.05
    levels = group_sequential.nominal_levels(looks, 12, alpha)
    steps = np.random.default_rng(3).standard_normal((40_000, 12))
    paths = steps.cumsum(axis=1)[:, [look - 1 for look in looks]] / np.sqrt(looks)
    crossed = (paths > special.ndtri(1 - np.asarray(levels))).any(axis=1)

    assert crossed.mean() == pytest.approx(alpha, abs=0.0035)
    assert group_sequential.nominal_levels((7,), 7, alpha) == pytest.approx((alpha,))


def test_a_gate_that_ends_early_has_not_spent_all():
    """The time was over after five of twelve generations."""
    looks = group_sequential.looks_until(5, (3, 4, 6, 8, 12))

    assert (3, 4, 5) == looks
    assert sum(group_sequential.nominal_levels(looks, 12, 0.05)) < 0.05


def test_a_case_without_numbers_stays_undecided():
    """The other one has passed once enough generations were seen."""
    logs = np.full((1, LOOKS[-1], 2), np.nan)
    logs[0, :, 0] = np.resize([-0.001, 0.001, 0.0], LOOKS[-1])
    design = Design(looks=LOOKS, most=LOOKS[-1], delta=0.05, alpha=0.05)
    found = group_sequential.outcomes({TURNS: logs}, design)

    assert [PASSED, group_sequential.UNDECIDED] == found.of_cases[TURNS][0].tolist()
    assert group_sequential.fewest_to_pass(0.05) == found.decided_at[TURNS][0, 0]
    assert group_sequential.UNDECIDED == found.verdicts[0]


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_pass_needs_generations_that_show_what_slows_one_in_five(alpha):
    """So many that all are quick with a probability of alpha at most."""
    fewest = group_sequential.fewest_to_pass(alpha)

    assert 0.8**fewest < alpha < 0.8 ** (fewest - 3)
    assert fewest in group_sequential.planned_looks(alpha)


def test_intervals_are_as_wide_as_the_dependence_that_is_not_ruled_out():
    """Wider for few generations, for neighbours that agree, and for shared noise."""
    noise = np.random.default_rng(1).standard_normal((500, 20, 6))
    few, many, one, alike, shared = (
        float(group_sequential.widening(of - of.mean(axis=1, keepdims=True)).mean())
        for of in (
            noise[:, :5],
            noise,
            noise[:, :, :1],
            noise.cumsum(axis=1),
            np.broadcast_to(noise[:, :, :1], noise.shape),
        )
    )

    assert 1 < many < few < 2
    assert many < one == pytest.approx(shared)
    assert alike > 2.5


def test_single_processes_are_judged_by_their_sign():
    """A generation counts once, to the side of most of its cases."""
    design = Design(looks=(8,), most=8, delta=0.05, alpha=0.05)
    both, one = np.zeros((8, 6)), np.zeros((8, 6))
    both[0, :4], both[1, :4] = 0.4, -0.4
    for generation in range(8):
        one[generation, generation % 6] = 0.4
    found = group_sequential.singles(one, design, number=8)

    assert not group_sequential.singles(both, design, number=8).holds
    assert (True, 8, 0) == (found.holds, int(found.num_slower), int(found.num_faster))
