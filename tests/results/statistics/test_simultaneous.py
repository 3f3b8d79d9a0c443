"""Several comparisons at once: Holm's procedure, and what holds within a set."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results import errors
from results.statistics import estimates, simultaneous

probabilities = st.lists(st.floats(min_value=0, max_value=1), max_size=8)


def differences(logs):
    """Compares log ratios over generations, by name."""
    means = {name: estimates.one_group(values) for name, values in logs.items()}
    return simultaneous.differences(means)


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
    assert pytest.approx((0.03, 0.06, 0.06, 0.02)) == simultaneous.holm(
        (0.01, 0.04, 0.03, 0.005)
    )
    assert simultaneous.holm((0.6, 0.5)) == (1.0, 1.0)
    assert simultaneous.holm(()) == ()


@given(probabilities)
def test_adjusting_never_strengthens_and_keeps_the_order(values):
    """From p to the number of comparisons times p, and at most 1."""
    adjusted = simultaneous.holm(values)
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
        (lambda: simultaneous.holm([0.1, 1.2]), r"holds 1\.2, all must be from 0 to 1"),
        (lambda: simultaneous.holm([math.nan]), r"holds nan, all must be from 0 to 1"),
        (
            lambda: simultaneous.differences({}, alpha=1.0),
            r"alpha is 1\.0, must be more than 0 and less than 1: the accepted prob",
        ),
    ],
)
def test_what_is_no_set_of_comparisons_is_refused(call, message):
    """One line with what is allowed."""
    with pytest.raises(errors.ResultsError, match=message):
        call()
