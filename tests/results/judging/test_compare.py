"""A comparison pairs what was measured together, and says where it could not."""

import math
import re

import pytest

from results.errors import ResultsError
from results.judging import compare, gate_metrics
from results.records import kept_metrics
from results.records.models import MetricFacts
from results.statistics import estimates
from results.study.cases import load_study

METRIC = gate_metrics.THROUGHPUT
TRUE_RATIO = 47.2 / 37.4
"""Of in_graph and tf_mirrored at two replicas, in the table of the made-up studies."""


@pytest.fixture
def relay(tmp_path, synthetic):
    def make(name="s", **fields):
        defaults = {
            "modes": (synthetic.WEAK,),
            "repeats": 4,
            "num_rounds": 10,
            "noise": 0.008,
            "is_evaluated": False,
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        return load_study(synthetic.make_store(tmp_path / name, shape))

    return make


def test_two_studies_are_two_groups(relay):
    """A weaker comparison; settings that differ are what is compared."""
    found = compare.of_studies(relay("a"), relay("b", repeats=5, noise=0.009), METRIC)

    assert found.is_weaker
    assert () == found.differences
    for row in found.rows:
        assert "not measured in the same rounds" in row.difference.ratio.method
        assert 4 == row.difference.ratio.n
        assert row.difference.ratio.low < 1 < row.difference.ratio.high
    assert "order: relay / sequential" in (
        compare.of_studies(relay("c"), relay("d", num_rounds=0), METRIC).settings
    )


def test_a_study_of_one_generation_is_compared_without_a_test(relay):
    """Nothing is known about its spread."""
    found = compare.of_studies(relay("a"), relay("b", repeats=1), METRIC)

    assert found.rows == found.without_test


def test_two_groups_agree_with_the_textbook():
    """Welch's test of two small samples, computed by scipy."""
    from scipy import stats

    first, second = [0.11, 0.13, 0.02, 0.08], [0.01, -0.02, 0.04]
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = estimates.two_groups(first, second)

    assert pytest.approx(expected.pvalue) == found.p_value()
    assert pytest.approx(expected.df) == found.degrees_of_freedom
    low, high = expected.confidence_interval(0.9)
    assert pytest.approx((low, high)) == (
        found.centre - found.half_width(0.9),
        found.centre + found.half_width(0.9),
    )


def test_equal_groups_without_spread_do_not_differ():
    """No division by zero."""
    assert 1.0 == estimates.two_groups([0.1, 0.1], [0.1, 0.1]).p_value()
    assert 0.0 == estimates.two_groups([0.2, 0.2], [0.1, 0.1]).p_value()
    assert math.isfinite(estimates.two_groups([0.1, 0.1], [0.1, 0.1]).half_width())


def test_a_group_of_one_generation_has_no_interval():
    """Nothing is known about its spread, and nothing is tested."""
    found = estimates.two_groups([0.1, 0.2], [0.1])

    assert (None, None, 1) == (found.half_width(), found.p_value(), found.n)


def test_metrics_are_named_in_the_message():
    """One without ratios, and one that a gate cannot judge: a rate of a window."""
    declared = [
        MetricFacts(**facts)
        for workload in ("sngan", "d4pg")
        for facts in kept_metrics.of_workload(workload)
    ]
    with pytest.raises(ResultsError, match=r"metric 'fid'; allowed are thr.* by seed"):
        gate_metrics.metric_of("fid")
    message = r"metric 'policy_lag'; allowed are thr.* learns fid, kid, "
    with pytest.raises(ResultsError, match=message):
        gate_metrics.metric_of_gate("policy_lag", declared)
    with pytest.raises(ResultsError, match="of what this workload learns nothing"):
        gate_metrics.metric_of_gate("fid", [])
    assert re.fullmatch(r"\w+", METRIC.name)
