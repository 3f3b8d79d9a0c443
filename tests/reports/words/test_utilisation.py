"""Model FLOP utilisation: throughput by operations over the peak of all processes."""

import re

import pytest
from relay_study import RelayShape, make_store

from reports.page.sections import lost_time
from reports.view.view import view_store
from reports.words import utilisation
from results.figures import scaling, summary
from results.study.cases import load_study

PEAK = 2e9
FLOPS_PER_EXAMPLE = 1_000_000


def test_it_is_the_rate_of_the_model_over_all_peaks(tmp_path):
    """Two processes have two peaks; the interval is over generations."""
    store = make_store(tmp_path, RelayShape(num_ranks=2, peak_flops_per_sec=PEAK))
    for case in load_study(store).cases:
        for entry in case.ok_entries:
            total = PEAK * len(entry.result.ranks)
            expected = scaling.throughput_of(entry) * FLOPS_PER_EXAMPLE / total
            assert scaling.flop_utilisation_of(entry) == pytest.approx(expected)
    for point in summary.summary(store)["points"]:
        found, rate = point["flop_utilisation"], point["throughput"]
        total = PEAK * point["num_replicas"]
        assert found["n"] == rate["n"] == 4
        for name in ("value", "low", "high"):
            expected = rate[name] * FLOPS_PER_EXAMPLE / total
            assert found[name] == pytest.approx(expected, rel=1e-6)


def test_the_section_of_lost_time_has_a_table_of_it(tmp_path):
    """Every case with its interval and n, and the peak per replica."""
    store = make_store(tmp_path, RelayShape(num_ranks=2, peak_flops_per_sec=PEAK))
    found = utilisation.of_view(view_store(store))
    shown = lost_time.render(view_store(store))

    assert found is not None
    assert found.peak == "2.00"
    assert [("in_graph", 1, 8, 4), ("in_graph", 2, 8, 4)] == [
        (*row[:3], row[4]) for row in found.rows
    ]
    assert re.fullmatch(r"\d\.\d+.% \[\d\.\d+,.\d\.\d+\]", found.rows[0][3])
    assert all(row[3] in shown for row in found.rows)


def test_nothing_is_said_where_a_peak_is_missing(tmp_path):
    """Such as in records of earlier versions."""
    store = make_store(tmp_path)

    assert utilisation.of_view(view_store(store)) is None
    assert {None} == {p["flop_utilisation"] for p in summary.summary(store)["points"]}
