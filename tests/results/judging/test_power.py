"""What a gate can find: probabilities of its verdicts, and the time that more takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from results import errors
from results.judging import power
from results.statistics import generations, judge
from results.statistics.judge import Verdict

SPREAD = 0.03
# Of the numerical average over standard deviations.
ACCURACY = 1e-3


def test_operating_points_of_the_default_gate() -> None:
    """Four generations with a spread of 0.03, delta of 5 %."""
    same, at_delta, slow = power.operating_points(SPREAD, 4, 0.05, [0, 0.05, 0.08])

    assert same.regresses == pytest.approx(0.015, abs=0.002)
    assert same.passes == pytest.approx(0.79, abs=0.005)
    assert at_delta.passes == pytest.approx(0.05, abs=ACCURACY)
    assert slow.regresses == pytest.approx(0.98, abs=0.005)


@pytest.mark.parametrize("num_generations", [2, 4, 10])
@pytest.mark.parametrize("effect", [-0.05, 0.0, 0.03, 0.05, 0.1])
def test_pass_and_improve_follow_the_noncentral_t(
    num_generations: int, effect: float
) -> None:
    """The closed form, by another library."""
    (point,) = power.operating_points(SPREAD, num_generations, 0.05, [effect])
    error = SPREAD / num_generations**0.5
    degrees = num_generations - 1
    quantile = stats.t.ppf(0.95, degrees)
    shifts = [(math.log1p(effect) - limit) / error for limit in (math.log(1.05), 0.0)]
    passes, improves = (stats.nct.cdf(-quantile, degrees, shift) for shift in shifts)

    assert passes == pytest.approx(point.passes, abs=ACCURACY)
    assert improves == pytest.approx(point.improves, abs=ACCURACY)


@pytest.mark.parametrize(("num_generations", "effect"), [(2, 0.0), (4, 0.03), (6, 0.1)])
def test_probabilities_are_the_shares_of_simulated_gates(
    num_generations: int, effect: float
) -> None:
    """The rule itself on normal generations, without any formula."""
    num_gates = 4000
    tolerance = 4 * (0.25 / num_gates) ** 0.5  # four standard errors of a share
    generator = np.random.default_rng(num_generations)
    draws = generator.normal(
        math.log1p(effect), SPREAD, (num_gates, num_generations)
    ).tolist()
    verdicts = [judge.judge(draw).verdict for draw in draws]
    (point,) = power.operating_points(SPREAD, num_generations, 0.05, [effect])
    passes = sum(verdict.is_pass for verdict in verdicts) / num_gates

    assert point.passes == pytest.approx(passes, abs=tolerance)
    for verdict, expected in (
        (Verdict.IMPROVE, point.improves),
        (Verdict.REGRESS, point.regresses),
        (Verdict.INCONCLUSIVE, point.inconclusive),
    ):
        share = verdicts.count(verdict) / num_gates
        assert expected == pytest.approx(share, abs=tolerance)


@pytest.mark.parametrize("spread", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_delta_itself_passes_with_probability_alpha(
    spread: float, alpha: float
) -> None:
    """Whatever the noise."""
    (point,) = power.operating_points(spread, 4, 0.05, [0.05], alpha=alpha)

    assert alpha == pytest.approx(point.passes, abs=ACCURACY)


def test_probabilities_add_up_to_one() -> None:
    """Improve is a part of pass."""
    for point in power.operating_points(SPREAD, 3, 0.05, [-0.1, 0, 0.02, 0.05, 0.2]):
        total = point.passes + point.regresses + point.inconclusive
        assert total == pytest.approx(1.0)
        assert point.improves <= point.passes


def test_what_each_effect_needs() -> None:
    """No change passes, more than delta regresses, and their time is known."""
    same, slow = power.needed([0.0, 0.10], spread=SPREAD, minutes_per_generation=2.5)

    assert (Verdict.PASS, Verdict.REGRESS) == (same.verdict, slow.verdict)
    assert (5, 3) == (same.num_generations, slow.num_generations)
    assert (12.5, 7.5) == (same.minutes, slow.minutes)


def test_fewer_generations_are_not_enough() -> None:
    """The number is the smallest that has the power."""
    (need,) = power.needed([0.08], spread=SPREAD, minutes_per_generation=1, power=0.9)
    assert need.num_generations is not None
    for number, is_enough in ((need.num_generations, True), (3, False)):
        (point,) = power.operating_points(SPREAD, number, 0.05, [0.08])
        assert (point.regresses >= 0.9) is is_enough


def test_an_effect_just_below_delta_cannot_be_shown_to_be() -> None:
    """No number of generations within reason passes it."""
    (need,) = power.needed([0.0499], spread=SPREAD, minutes_per_generation=2.5)

    assert (None, None) == (need.num_generations, need.minutes)


def test_smallest_effect_found_has_the_power() -> None:
    """More generations find less; a hopeless number finds nothing."""
    four = power.smallest_effect_found(SPREAD, 4, power=0.9)
    (point,) = power.operating_points(SPREAD, 4, 0.05, [four])

    assert point.regresses == pytest.approx(0.9, abs=0.01)
    assert power.smallest_effect_found(SPREAD, 8, power=0.9) < four
    assert power.smallest_effect_found(0.001, 20, power=0.9) == 0.05
    assert power.smallest_effect_found(10.0, 2, power=0.9) is None


def test_half_of_all_measurements_reach_the_median_half_width() -> None:
    """Simulated with the interval that is reported."""
    generator = np.random.default_rng(4)
    widths = []
    for _ in range(2000):
        estimate = generations.over_generations(generator.normal(0, SPREAD, 4).tolist())
        widths.append(math.log(estimate.high / estimate.low) / 2)

    assert power.median_half_width(SPREAD, 4) == pytest.approx(
        np.median(widths), rel=0.04
    )


def test_generations_for_a_target() -> None:
    """At least five, as the rule that stops; more for less; None beyond reach."""
    assert power.generations_for_target(0.20, SPREAD) == 5
    assert power.generations_for_target(0.03, SPREAD) == 7
    assert power.generations_for_target(0.0001, SPREAD) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: power.operating_points(0.0, 4, 0.05, [0]),
            r"spread is 0\.0, must be positive and finite: the standard deviation",
        ),
        (
            lambda: power.operating_points(SPREAD, 1, 0.05, [0]),
            r"num_generations is 1, must be 2 or more: one says nothing about",
        ),
        (
            lambda: power.operating_points(SPREAD, 4, -0.05, [0]),
            r"delta is -0\.05, must be more than 0 and at most 1",
        ),
        (
            lambda: power.operating_points(SPREAD, 4, 0.05, [0], alpha=0.7),
            r"alpha is 0\.7, must be more than 0 and less than 0\.5",
        ),
        (
            lambda: power.operating_points(SPREAD, 4, 0.05, [-1.0]),
            r"effect is -1\.0, must be a ratio above -1: 0\.05 is 5 % slower",
        ),
        (
            lambda: power.needed([0], spread=SPREAD, minutes_per_generation=0),
            r"minutes_per_generation is 0, must be positive and finite",
        ),
        (
            lambda: power.needed(
                [0], spread=SPREAD, minutes_per_generation=1, power=1.0
            ),
            r"power is 1\.0, must be more than 0 and less than 1: the probability of",
        ),
        (
            lambda: power.smallest_effect_found(SPREAD, 1),
            r"num_generations is 1, must be 2 or more",
        ),
        (
            lambda: power.median_half_width(math.nan, 4),
            r"spread is nan, must be positive and finite",
        ),
        (
            lambda: power.generations_for_target(0, SPREAD),
            r"target is 0, must be a positive ratio",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(call, message: str) -> None:
    """One line with what is allowed."""
    with pytest.raises(errors.ResultsError, match=message):
        call()
