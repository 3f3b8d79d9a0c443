"""Estimates over trials, rounds and repetitions, and several ratios at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import results
from results import statistics

positive = st.floats(min_value=1e-3, max_value=1e6)


def logs_of(estimate):
    return [math.log(of) for of in (estimate.low, estimate.value, estimate.high)]


def test_one_repetition_has_no_interval_and_says_why():
    estimate = statistics.geometric_mean([42.0], unit="images/s")

    assert (42.0, None, None, 1) == (
        pytest.approx(estimate.value),
        estimate.low,
        estimate.high,
        estimate.n,
    )
    assert "one repetition" in estimate.method
    assert not estimate.excludes(1.0)


@given(st.lists(positive, min_size=2, max_size=6, unique=True))
def test_interval_of_one_group_is_students_on_logs(values):
    logs = np.log(values)
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=logs.mean(), scale=stats.sem(logs)
    )
    estimate = statistics.geometric_mean(values, unit="images/s")

    assert [low, logs.mean(), high] == pytest.approx(logs_of(estimate), abs=1e-9)
    assert estimate.excludes(math.exp(high + 0.1))
    assert not estimate.excludes(math.exp(logs.mean()))


def test_ratio_pairs_by_key_not_by_position():
    first = {(0, 7): 2.0, (1, 8): 4.0, (2, 9): 8.0}
    second = {(2, 9): 4.0, (0, 7): 1.0, (1, 8): 2.0}
    estimate = statistics.ratio(first, second)

    assert estimate.method == "Student's t of paired log ratios over repetitions"
    assert [math.log(2.0)] * 3 == pytest.approx(logs_of(estimate))


def test_ratio_without_common_repetitions_is_unpaired():
    estimate = statistics.ratio({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 2: 1.1})
    to_one = statistics.ratio({0: 2.0, 1: 2.1}, {0: 1.0})

    assert "Welch's t of log values, unpaired groups" == estimate.method
    assert 2 == estimate.n
    assert estimate.low < estimate.value < estimate.high
    assert None is to_one.low
    assert "no interval: one repetition gives no information on the spread" == (
        to_one.method
    )


def test_the_interval_is_students_where_one_group_is_certain():
    first = {0: 1.00, 1: 1.02, 2: 0.97}
    estimate = statistics.ratio(first, {10: 1.0, 11: 1.0, 12: 1.0})
    half = stats.t.ppf(0.975, 2) * stats.sem(np.log(list(first.values())))
    _, centre, high = logs_of(estimate)

    assert half == pytest.approx(high - centre)


def test_two_groups_agree_with_the_textbook():
    first, second = [0.11, 0.13, 0.02, 0.08], [0.01, -0.02, 0.04]
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = statistics.two_groups(first, second)
    ends = found.centre - found.half_width(0.9), found.centre + found.half_width(0.9)
    same = statistics.two_groups([0.1, 0.1], [0.1, 0.1])
    of_one = statistics.two_groups([0.1, 0.2], [0.1])

    assert pytest.approx(expected.pvalue) == found.p_value()
    assert pytest.approx(expected.df) == found.degrees_of_freedom
    assert pytest.approx(tuple(expected.confidence_interval(0.9))) == ends
    assert (1.0, True) == (same.p_value(), math.isfinite(same.half_width()))
    assert 0.0 == statistics.two_groups([0.2, 0.2], [0.1, 0.1]).p_value()
    assert (None, None, 1) == (of_one.half_width(), of_one.p_value(), of_one.n)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6, unique=True))
def test_p_value_is_students(logs):
    found = statistics.one_group(logs)

    assert stats.ttest_1samp(logs, 0).pvalue == pytest.approx(found.p_value(), abs=1e-9)
    assert (found.p_value() < 0.05) == (abs(found.centre) > found.half_width())


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, math.nan]])
def test_values_that_are_no_measurement_are_refused(values):
    with pytest.raises(results.ResultsError, match=r"^values (is|holds) \[.*must be"):
        statistics.geometric_mean(values, unit="images/s")


def test_the_wildest_repetitions_have_an_interval_of_floats():
    found = statistics.ratio({0: 1e-20, 1: 1e29}, {0: 1e29, 1: 1e-20})

    assert 0 <= found.low < 1 < found.high < math.inf


LOGS = [0.50, 0.54, 0.47, 0.52]


def student(logs):
    """Student's t interval of the mean, by another library, and the mean."""
    low, high = stats.t.interval(
        0.95, len(logs) - 1, loc=np.mean(logs), scale=stats.sem(logs)
    )
    return math.exp(low), math.exp(np.mean(logs)), math.exp(high)


def ends_of(estimate):
    return estimate.low, estimate.value, estimate.high


def test_intervals_say_what_they_are_over():
    repetitions_only = statistics.over_rounds([[of] for of in LOGS], unit="images/s")
    # Five equal means of 20 rounds that differ.
    rounds = statistics.over_rounds([[0.4, 0.6] * 10] * 5)

    assert student(LOGS) == pytest.approx(ends_of(repetitions_only))
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
    mean = statistics.mean_of_rounds([[0.1 - apart, 0.1 + apart] * 10, [0.09] * 20])

    assert (mean.p_value() < 0.05) == (mean.centre > mean.half_width())
    assert 2 * mean.half_width() == pytest.approx(mean.widened(2.0).half_width())


def test_an_interval_that_decided_when_to_stop_is_wider():
    logs = [*LOGS, 0.49, 0.51]
    planned, stopped = (
        statistics.over_rounds([[log] for log in logs], is_stopped_on_width=of)
        for of in (False, True)
    )
    half_widths = [math.log(e.high / e.low) / 2 for e in (planned, stopped)]

    assert pytest.approx(1.10) == half_widths[1] / half_widths[0]
    assert planned.value == stopped.value
    assert "widened by 10 % because measuring stopped on its width" in stopped.method
    assert statistics.over_repetitions(logs[:5]) == statistics.over_rounds(
        [[log] for log in logs[:5]], is_stopped_on_width=True
    )


@pytest.mark.parametrize("more", [[], [0.51, 0.50]])
def test_measuring_stops_where_the_reported_interval_reaches_the_target(more):
    logs = [[log, log] for log in (*LOGS, 0.49, *more)]
    estimate = statistics.over_rounds(logs, is_stopped_on_width=True)
    reached = estimate.high / estimate.value - 1

    assert statistics.is_precise_enough(logs, reached * 1.001)
    assert not statistics.is_precise_enough(logs, reached * 0.999)
    # Not from fewer than five, though they agree to the last digit.
    assert [False, False, True] == [
        statistics.is_precise_enough([[0.5, 0.5]] * n, 0.03) for n in (0, 4, 5)
    ]


def test_one_repetition_excludes_nothing():
    logs = np.random.default_rng(1).normal(0.5, 0.1, 23).tolist()
    estimate = statistics.these_processes_only(logs)

    assert estimate.low > 1
    assert (1, False) == (estimate.n, estimate.is_conclusive)
    assert not estimate.excludes(1.0)
    assert not estimate.scaled(0.5).excludes(1.0)
    assert "these processes only: one run says nothing" in estimate.method


def test_noise_that_lasts_for_rounds_widens_the_interval_of_one_repetition():
    logs = np.random.default_rng(2).normal(0.0, 0.1, 100).tolist()
    independent, dependent = map(statistics.these_processes_only, (logs, sorted(logs)))

    assert math.log(dependent.high) > 2 * math.log(independent.high)


@pytest.mark.parametrize(
    ("num_rounds", "expected"),
    [(3, 0), (4, 2), (19, 9), (100, 10), (192, 13), (5000, 30)],
)
def test_one_repetition_has_the_interval_of_so_many_batches(num_rounds, expected):
    logs = np.random.default_rng(num_rounds).normal(0.5, 0.1, num_rounds)
    estimate = statistics.these_processes_only(logs)
    ends = [logs.mean()]
    if expected:
        means = [batch.mean() for batch in np.array_split(logs, expected)]
        half = stats.t.ppf(0.975, expected - 1) * stats.sem(means)
        ends = [logs.mean() - half, logs.mean(), logs.mean() + half]

    known = [of for of in ends_of(estimate) if of is not None]
    assert ends == pytest.approx(np.log(known))
    assert ("too few rounds" in estimate.method) == (not expected)


def holm(*p_values):
    return tuple(statistics.holm(dict(enumerate(p_values))).values())


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


def test_what_is_no_measurement_is_refused():
    with pytest.raises(results.ResultsError, match="a sequence of one or more numbers"):
        statistics.over_repetitions([])
