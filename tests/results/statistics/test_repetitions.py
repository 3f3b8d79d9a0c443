"""Ratios of an interleaved study over rounds and repetitions, and several at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results import errors
from results.statistics import estimates

LOGS = [0.50, 0.54, 0.47, 0.52]


def student(logs):
    """Student's t interval of the mean, by another library, and the mean."""
    low, high = stats.t.interval(
        0.95, len(logs) - 1, loc=np.mean(logs), scale=stats.sem(logs)
    )
    return math.exp(low), math.exp(np.mean(logs)), math.exp(high)


def ends(estimate):
    return estimate.low, estimate.value, estimate.high


def test_intervals_say_what_they_are_over():
    repetitions_only = estimates.over_rounds([[of] for of in LOGS], unit="images/s")
    # Five equal means of 20 rounds that differ.
    rounds = estimates.over_rounds([[0.4, 0.6] * 10] * 5)

    assert student(LOGS) == pytest.approx(ends(repetitions_only))
    assert (4, "images/s", True) == (
        repetitions_only.n,
        repetitions_only.unit,
        repetitions_only.is_conclusive,
    )
    assert "over runs" in repetitions_only.method
    assert repetitions_only.excludes(1.0)
    assert "not narrower than the rounds imply" in rounds.method


@pytest.mark.parametrize("apart", [0.05, 0.4])
def test_a_p_value_agrees_with_its_interval(apart):
    mean = estimates.mean_of_rounds([[0.1 - apart, 0.1 + apart] * 10, [0.09] * 20])

    assert (mean.p_value() < 0.05) == (mean.centre > mean.half_width())
    assert 2 * mean.half_width() == pytest.approx(mean.widened(2.0).half_width())


def test_an_interval_that_decided_when_to_stop_is_wider():
    logs = [*LOGS, 0.49, 0.51]
    planned, stopped = (
        estimates.over_rounds([[log] for log in logs], is_stopped_on_width=of)
        for of in (False, True)
    )
    half_widths = [math.log(e.high / e.low) / 2 for e in (planned, stopped)]

    assert pytest.approx(1.10) == half_widths[1] / half_widths[0]
    assert planned.value == stopped.value
    assert "widened by 10 % because measuring stopped on its width" in stopped.method
    assert estimates.over_repetitions(logs[:5]) == estimates.over_rounds(
        [[log] for log in logs[:5]], is_stopped_on_width=True
    )


@pytest.mark.parametrize("more", [[], [0.51, 0.50]])
def test_measuring_stops_where_the_reported_interval_reaches_the_target(more):
    logs = [[log, log] for log in (*LOGS, 0.49, *more)]
    estimate = estimates.over_rounds(logs, is_stopped_on_width=True)
    reached = estimate.high / estimate.value - 1

    assert estimates.is_precise_enough(logs, reached * 1.001)
    assert not estimates.is_precise_enough(logs, reached * 0.999)
    # Not from fewer than five, though they agree to the last digit.
    assert [False, False, True] == [
        estimates.is_precise_enough([[0.5, 0.5]] * n, 0.03) for n in (0, 4, 5)
    ]


def test_one_repetition_excludes_nothing():
    logs = np.random.default_rng(1).normal(0.5, 0.1, 23).tolist()
    estimate = estimates.these_processes_only(logs)

    assert estimate.low > 1
    assert (1, False) == (estimate.n, estimate.is_conclusive)
    assert not estimate.excludes(1.0)
    assert not estimate.scaled(0.5).excludes(1.0)
    assert "these processes only: one run says nothing" in estimate.method


def test_noise_that_lasts_for_rounds_widens_the_interval_of_one_repetition():
    logs = np.random.default_rng(2).normal(0.0, 0.1, 100).tolist()
    independent, dependent = map(estimates.these_processes_only, (logs, sorted(logs)))

    assert math.log(dependent.high) > 2 * math.log(independent.high)


@pytest.mark.parametrize(
    ("num_rounds", "expected"),
    [(3, 0), (4, 2), (19, 9), (100, 10), (192, 13), (5000, 30)],
)
def test_number_of_batches(num_rounds, expected):
    estimate = estimates.these_processes_only([0.5] * num_rounds)

    assert expected == estimates.num_batches(num_rounds)
    assert estimate.has_interval == bool(expected)
    assert ("too few rounds" in estimate.method) == (not expected)


def holm(*p_values):
    return tuple(estimates.holm(dict(enumerate(p_values))).values())


def test_holms_own_steps():
    """Times 4, 3, 2, 1 in order of size, never below one before, at most 1."""
    assert pytest.approx((0.03, 0.06, 0.06, 0.02)) == holm(*(0.01, 0.04, 0.03, 0.005))
    assert holm(0.6, 0.5) == (1.0, 1.0)
    assert holm() == ()


@given(st.lists(st.floats(min_value=0, max_value=1), max_size=8))
def test_adjusting_never_strengthens_and_keeps_the_order(values):
    adjusted = holm(*values)
    order = np.argsort(values, kind="stable")

    for value, found in zip(values, adjusted, strict=True):
        assert value <= found <= min(1.0, len(values) * value)
    assert sorted(adjusted) == [adjusted[i] for i in order]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: estimates.log_ratios({0: 1.0}, {7: math.nan}),
            "value nan in round 7",
        ),
        (lambda: estimates.is_precise_enough([LOGS], 0.0), "must be a positive rat"),
        (lambda: estimates.over_repetitions([]), "a sequence of one or more numbers"),
        (lambda: holm(0.1, 1.2), "holds 1.2, all must be from 0 to 1"),
    ],
)
def test_what_is_no_measurement_is_refused(call, message):
    with pytest.raises(errors.ResultsError, match=message):
        call()
