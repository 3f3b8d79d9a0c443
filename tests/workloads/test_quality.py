"""Figures of metrics: what they are called, and their intervals."""

import dataclasses
import os
import pathlib
import sys

import numpy as np
import pytest
import scipy.stats

from workloads import ONE_THREAD, child_environment, quality
from workloads.spec import Metric

WILSON = "Wilson score interval"
METRIC = Metric(
    name="top_1", title="Top-1", unit="ratio", protocol="all", is_higher_better=True
)


def test_intervals_are_scipys():
    values = [1.0, 2.0, 4.0, 9.0]
    reference = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    metric = quality.mean(METRIC, values)

    assert (metric.value, metric.num_examples) == (4.0, 4)
    assert tuple(reference) == pytest.approx((metric.low, metric.high))


def test_values_that_are_alike_in_groups_have_the_interval_of_groups():
    of_groups = [1.0, 2.0, 4.0, 9.0]
    expected = quality.mean(METRIC, of_groups)

    found = quality.mean(METRIC, np.repeat(of_groups, 3), np.repeat([7, 3, 5, 1], 3))

    assert (expected.value, 4) == (found.value, found.num_examples)
    assert (expected.low, expected.high) == pytest.approx((found.low, found.high))
    assert "over groups of the 12 examples" in found.method


def test_a_large_group_counts_for_more():
    """The mean is that of all values; its interval by hand, as a ratio of two sums."""
    values, groups = np.array([1.0, 1.0, 1.0, 5.0, 6.0]), np.array([0, 0, 0, 1, 2])
    found = quality.mean(METRIC, values, groups)
    # Sums less the mean times the size: -5.4, 2.2, 3.2; n = 3 groups of 5 values.
    error = np.sqrt((5.4**2 + 2.2**2 + 3.2**2) * 3 / 2) / 5

    assert 2.8 == pytest.approx(found.value)
    assert scipy.stats.t.ppf(0.975, 2) * error == pytest.approx(found.high - 2.8)


def test_examples_of_all_batches_count():
    is_even = dataclasses.replace(METRIC, name="even", of=lambda x: x % 2 == 0)
    itself = dataclasses.replace(METRIC, name="itself", of=lambda x: x)
    batches = [(np.array([1.0, 2.0]),), (np.array([6.0]),)]

    share, mean = quality.example_metrics([is_even, itself], batches)
    counted = quality.counted(METRIC, 2.5, num_examples=7)

    assert (share.name, share.value, share.method) == ("even", 2 / 3, WILSON)
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with n = 3
    assert (0.2076596, 0.9385081) == pytest.approx((share.low, share.high), rel=1e-6)
    assert (share.num_examples, share.confidence, share.unit) == (3, 0.95, "ratio")
    assert (mean.name, mean.value, mean.num_examples) == ("itself", 3.0, 3)
    assert (2.5, 2.5, 2.5) == (counted.low, counted.value, counted.high)
    assert "counted, not estimated" == counted.method


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quality.mean(METRIC, [1.0]), r"1 value\(s\) of 'top_1': an interval"),
        (
            lambda: quality.mean(METRIC, np.ones(5), np.zeros(5)),
            r"got 1 group\(s\) of 'top_1': an interval",
        ),
        (
            lambda: dataclasses.replace(METRIC, name="Top 1"),
            r"'Top 1' is a column and an option: use small letters",
        ),
        (
            lambda: dataclasses.replace(METRIC, tolerance=5.0),
            r"'top_1' has tolerance=5.0: use a ratio between 0 and 1",
        ),
    ],
)
def test_what_gives_no_figure_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_variables_are_added_and_the_others_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", "/somewhere", str(ROOT)])

    assert {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}/somewhere"} == (
        child_environment()
    )
    found = child_environment(ONE_THREAD)
    assert ("1", "0") == (found["OMP_NUM_THREADS"], found["LP_NUM_THREADS"])
