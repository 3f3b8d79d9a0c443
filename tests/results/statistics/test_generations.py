"""Ratios of a relay over rounds and generations, verdicts, and several at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results import errors
from results.statistics import estimates, generations, group_sequential
from results.statistics.group_sequential import Verdict

LOGS = [0.50, 0.54, 0.47, 0.52]


def _interval(logs):
    """Student's t interval of the mean, by another library."""
    return stats.t.interval(
        0.95, len(logs) - 1, loc=np.mean(logs), scale=stats.sem(logs)
    )


def test_rounds_are_paired_by_index_and_unpaired_ones_left_out():
    """Round 3 is void on one side, round 4 on the other; their order is no matter."""
    first = {0: 2.0, 2: 8.0, 3: 1000.0}
    second = {4: 1000.0, 2: 2.0, 0: 1.0}

    assert pytest.approx((math.log(2.0), math.log(4.0))) == generations.log_ratios(
        first, second
    )
    assert () == generations.log_ratios({0: 2.0}, {1: 1.0})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_turn_that_is_no_measurement_is_refused(value):
    with pytest.raises(
        errors.ResultsError,
        match=r"second has the value \S+ in round 7, must be positive and finite;",
    ):
        generations.log_ratios({0: 1.0}, {7: value})


def test_interval_over_generations_is_students():
    """Each generation counts once."""
    estimate = generations.over_generations(LOGS, unit="images/s")
    low, high = _interval(LOGS)

    assert math.exp(np.mean(LOGS)) == pytest.approx(estimate.value)
    assert math.exp(low) == pytest.approx(estimate.low)
    assert math.exp(high) == pytest.approx(estimate.high)
    assert (4, "images/s", True) == (
        estimate.n,
        estimate.unit,
        estimate.is_conclusive,
    )
    assert "over generations" in estimate.method
    assert estimate.excludes(1.0)


def test_generations_that_agree_by_chance_are_as_uncertain_as_their_rounds():
    """Five equal means of 20 rounds that differ; 95 degrees of freedom."""
    logs = [[0.4, 0.6] * 10] * 5
    estimate = generations.over_rounds(logs)
    half = stats.t.isf(0.025, 95) * 0.1 * math.sqrt(20 / 19 / 100)

    assert math.exp(0.5) == pytest.approx(estimate.value)
    assert math.exp(0.5 - half) == pytest.approx(estimate.low)
    assert math.exp(0.5 + half) == pytest.approx(estimate.high)
    assert "not narrower than the rounds imply" in estimate.method
    assert 0.02 < half < 0.05
    assert not generations.is_precise_enough(logs, 0.02)
    assert generations.is_precise_enough(logs, 0.05)


def test_rounds_narrow_no_interval_and_no_p_value():
    """Where processes differ by more; a generation of one round is no reason."""
    logs = [[of - 0.001, of + 0.001] for of in LOGS] + [[0.51]]
    plain = generations.over_generations([*LOGS, 0.51])
    found = generations.over_rounds(logs)

    assert (plain.low, plain.high) == pytest.approx((found.low, found.high))
    single = generations.over_rounds([[of] for of in LOGS])
    assert generations.over_generations(LOGS) == single


@pytest.mark.parametrize("apart", [0.05, 0.4])
def test_a_p_value_agrees_with_its_interval(apart):
    """Whether generations or rounds decide."""
    mean = generations.mean_of_rounds([[0.1 - apart, 0.1 + apart] * 10, [0.09] * 20])
    low = mean.centre - mean.half_width()

    assert (mean.p_value() < 0.05) == (low > 0)
    half = mean.widened(2.0).half_width()
    assert 2 * mean.half_width() == pytest.approx(half)


def test_one_generation_has_no_interval_over_generations():
    estimate = generations.over_generations([0.5])

    assert (None, None, 1) == (estimate.low, estimate.high, estimate.n)
    assert "one generation says nothing about the spread" in estimate.method


def test_an_interval_that_decided_when_to_stop_is_wider():
    """By the factor that restores its coverage, and the method says so."""
    logs = [*LOGS, 0.49, 0.51]
    planned = generations.over_generations(logs)
    stopped = generations.over_generations(logs, is_stopped_on_width=True)
    half_widths = [math.log(e.high / e.low) / 2 for e in (planned, stopped)]

    assert pytest.approx(1.10) == half_widths[1] / half_widths[0]
    assert planned.value == stopped.value
    assert "widened by 10 % because measuring stopped on its width" in stopped.method


def test_an_interval_that_stops_at_the_first_look_is_as_planned():
    """At five generations nothing was decided by the width of any before."""
    logs = [*LOGS, 0.49]

    assert generations.over_generations(logs) == generations.over_generations(
        logs, is_stopped_on_width=True
    )


def test_interval_of_one_generation_is_over_batches_of_rounds():
    """Twenty-three rounds: ten batches of two or three."""
    logs = np.random.default_rng(1).normal(0.5, 0.1, 23)
    means = [batch.mean() for batch in np.array_split(logs, 10)]
    estimate = generations.these_processes_only(logs.tolist())
    low, high = _interval(means)

    assert math.exp(logs.mean()) == pytest.approx(estimate.value)
    assert (high - low) == pytest.approx(math.log(estimate.high / estimate.low))
    assert estimate.n == 1


def test_one_generation_gives_no_verdict():
    """However far its interval is from a value, it excludes none, scaled or not."""
    estimate = generations.these_processes_only([0.5, 0.51] * 10)

    assert estimate.low > 1.6
    assert not estimate.is_conclusive
    assert not estimate.excludes(1.0)
    assert not estimate.scaled(0.5, "x").excludes(1.0)
    assert "these processes only: one generation says nothing" in estimate.method


def test_noise_that_lasts_for_rounds_widens_the_interval_of_one_generation():
    """The same values, sorted: neighbours depend on each other."""
    logs = np.random.default_rng(2).normal(0.0, 0.1, 100).tolist()
    independent = generations.these_processes_only(logs)
    dependent = generations.these_processes_only(sorted(logs))

    assert math.log(dependent.high) > 2 * math.log(independent.high)


@pytest.mark.parametrize(
    ("num_rounds", "expected"),
    [
        (1, 0),
        (3, 0),
        (4, 2),
        (19, 9),
        (20, 10),
        (100, 10),
        (192, 13),
        (900, 30),
        (5000, 30),
    ],
)
def test_number_of_batches(num_rounds, expected):
    """From 10 to 30 where a batch can have two rounds, else fewer, else none."""
    assert expected == generations.num_batches(num_rounds)


def test_three_rounds_have_no_interval():
    """They give no two batches; the estimate still carries no verdict."""
    estimate = generations.these_processes_only([0.5, 0.6, 0.7])

    assert math.exp(0.6) == pytest.approx(estimate.value)
    assert not estimate.has_interval
    assert not estimate.is_conclusive
    assert "too few rounds" in estimate.method


def test_measuring_stops_only_from_five_generations_on():
    """Four that agree to the last digit are not enough."""
    assert not generations.is_precise_enough([], 0.03)
    assert not generations.is_precise_enough([[0.5, 0.5]] * 4, 0.03)
    assert generations.is_precise_enough([[0.5, 0.5]] * 5, 0.03)


@pytest.mark.parametrize("more", [[], [0.51, 0.50]])
def test_measuring_stops_where_the_reported_interval_reaches_the_target(more):
    """Half of it is within ln(1 + target), and not a little more."""
    logs = [[log, log] for log in (*LOGS, 0.49, *more)]
    estimate = generations.over_rounds(logs, is_stopped_on_width=True)
    reached = estimate.high / estimate.value - 1

    assert generations.is_precise_enough(logs, reached * 1.001)
    assert not generations.is_precise_enough(logs, reached * 0.999)


@pytest.mark.parametrize("target", [0.0, -0.03, float("nan"), float("inf")])
def test_a_target_that_no_interval_reaches_is_refused(target):
    with pytest.raises(
        errors.ResultsError, match=r"target is \S+, must be a positive ratio, such as 0"
    ):
        generations.is_precise_enough([LOGS], target)


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ([], r"logs is \[\], must be a sequence of one or more numbers"),
        ([0.1, float("nan")], r"logs holds \[0\.1, nan\], all must be finite; what f"),
    ],
)
def test_generations_that_measured_nothing_are_refused(logs, message):
    with pytest.raises(errors.ResultsError, match=message):
        generations.over_generations(logs)


LIMIT = math.log(1.05)
E = 1e-9


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
        (0.06, 0.09, Verdict.REGRESS),
        (0.0, LIMIT, Verdict.INCONCLUSIVE),
        (-0.5, 0.5, Verdict.INCONCLUSIVE),  # noise alone never passes
    ],
)
def test_verdict_of_an_interval(low, high, expected):
    assert group_sequential.verdict_of(low, high, margin=math.log(1.05)) is expected


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


def differences(logs):
    means = {name: estimates.one_group(values) for name, values in logs.items()}
    return generations.differences(means)


def test_p_value_is_students():
    """Two-sided, by another library."""
    logs = [0.02, 0.05, -0.01, 0.03]

    assert stats.ttest_1samp(logs, 0).pvalue == pytest.approx(
        estimates.one_group(logs).p_value()
    )


def test_p_value_without_spread():
    """Equal generations: certainly different, or not different at all."""
    assert estimates.one_group([0.1, 0.1]).p_value() == 0.0
    assert estimates.one_group([0.0, 0.0]).p_value() == 1.0
    assert estimates.one_group([0.1]).p_value() is None


def test_holms_own_steps():
    """Times 4, 3, 2, 1 in order of size, never below one before, at most 1."""
    assert pytest.approx((0.03, 0.06, 0.06, 0.02)) == generations.holm(
        (0.01, 0.04, 0.03, 0.005)
    )
    assert generations.holm((0.6, 0.5)) == (1.0, 1.0)
    assert generations.holm(()) == ()


@given(st.lists(st.floats(min_value=0, max_value=1), max_size=8))
def test_adjusting_never_strengthens_and_keeps_the_order(values):
    """From p to the number of comparisons times p, and at most 1."""
    adjusted = generations.holm(values)
    order = np.argsort(values, kind="stable")

    for value, found in zip(values, adjusted, strict=True):
        assert value <= found <= min(1.0, len(values) * value)
    assert sorted(adjusted) == [adjusted[i] for i in order]


def test_a_difference_may_exclude_one_and_not_hold_within_the_set():
    """The same generations, alone and beside nine other comparisons."""
    logs = [0.02, 0.05, 0.01, 0.04]
    others = {f"other {i}": [0.01, -0.01, 0.02, -0.02] for i in range(9)}
    alone = differences({"change": logs})["change"]
    among = differences({"change": logs, **others})["change"]

    assert alone.holds
    assert among.ratio == alone.ratio
    assert among.ratio.excludes(1.0)
    assert not among.holds
    assert among.p_value == pytest.approx(10 * alone.p_value)


def test_one_generation_tests_nothing_and_does_not_count():
    """It has no interval, and leaves the others as they were."""
    logs = [0.02, 0.05, 0.01, 0.04]
    found = differences({"a": logs, "b": [0.5]})

    assert (None, False) == (found["b"].p_value, found["b"].holds)
    assert not found["b"].ratio.has_interval
    assert found["a"] == differences({"a": logs})["a"]


def test_false_differences_in_a_set_are_as_rare_as_stated():
    num_sets = 1500
    tolerance = 3 * (0.05 * 0.95 / num_sets) ** 0.5  # three standard errors
    generator = np.random.default_rng(6)
    num_false = 0
    for _ in range(num_sets):
        baseline = generator.normal(0, 0.02, 4)
        logs = {
            str(i): (generator.normal(0, 0.02, 4) - baseline).tolist() for i in range(6)
        }
        found = differences(logs)
        num_false += any(one.holds for one in found.values())

    assert num_false / num_sets <= 0.05 + tolerance


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generations.holm([0.1, 1.2]), r"holds 1\.2, all must be from 0 to 1"),
        (lambda: generations.holm([math.nan]), r"holds nan, all must be from 0 to 1"),
        (
            lambda: generations.differences({}, alpha=1.0),
            r"alpha is 1\.0, must be more than 0 and less than 1: the accepted prob",
        ),
    ],
)
def test_what_is_no_set_of_comparisons_is_refused(call, message):
    with pytest.raises(errors.ResultsError, match=message):
        call()
