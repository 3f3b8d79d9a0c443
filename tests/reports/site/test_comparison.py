"""The page of two studies: what differs, ratios, shared axes, and refusals."""

import re

import pytest

from reports.site import comparison
from results.errors import ResultsError
from results.judging import gate_metrics
from results.study.cases import load_study

METRIC = gate_metrics.THROUGHPUT


@pytest.fixture(scope="module")
def compared(first, second):
    return comparison.compare_studies(load_study(first), load_study(second), METRIC)


def test_the_headline_says_how_much_in_how_many_cases(compared):
    expected = (
        "In A, throughput is 30.0\N{NARROW NO-BREAK SPACE}% higher than in B in 3 of 6"
        " shared cases. Advice, no verdict: the effect of the day and of the machine's"
    )

    assert comparison.headline(compared).startswith(expected)


def test_code_and_its_changes_are_named(compared):
    """Commit and dirtiness of both sides; nothing else differs."""
    (found,) = compared.differences

    assert ("code", "git commit") == (found.group, found.name)
    assert "012345678901" == found.first
    assert "fedcba9876fe with changes" == found.second


def test_both_studies_are_drawn_on_the_same_axes(compared):
    page = comparison.build(compared)
    charts = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', page, re.DOTALL)
    efficiency = [chart for chart in charts if "Parallel efficiency" in chart]
    ticks = {tuple(re.findall(r">([\d ]+\s%)</text>", chart)) for chart in efficiency}

    assert 4 == len(efficiency) == len(charts) - 4
    assert 1 == len(ticks)
    for chart in charts:
        assert {"A", "B"} == set(re.findall(r">([AB]) [^<]+</text>", chart))
        assert re.search(r"<title>A: \w+, \w+ scaling, 2 replicas: .*, n = 4<", chart)
    assert all("0\N{NARROW NO-BREAK SPACE}%" in of for of in ticks)


def test_the_same_records_give_the_same_page(compared, first, second):
    """Also when they are read again; nothing is loaded from elsewhere."""
    again = comparison.compare_studies(load_study(first), load_study(second), METRIC)
    page = comparison.build(compared)

    assert page == comparison.build(again)
    assert "://" not in page
    assert "<script" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_another_machine_is_a_reason_not_to_conclude(first, elsewhere):
    """The headline says it first, whatever the ratios are."""
    found = comparison.compare_studies(load_study(first), load_study(elsewhere), METRIC)

    assert ("the machines differ: processor ",) == tuple(
        reason[:31] for reason in found.reasons
    )
    assert comparison.headline(found).startswith(
        "These two studies are not comparable, so the ratios below are shown and judge"
        " nothing: the machines differ: processor"
    )


def test_a_study_has_no_difference_from_itself(first):
    study = load_study(first)
    with pytest.raises(ResultsError, match=r"both studies are 'before' with the same"):
        comparison.compare_studies(study, load_study(first), METRIC)


def test_cases_of_one_study_only_are_listed(first, make_study):
    larger = make_study("larger", replicas=(1, 2, 4), backends=("in_graph",))
    found = comparison.compare_studies(load_study(larger), load_study(first), METRIC)

    assert "in_graph, 4 replicas x 8" in found.only_first
    assert "tf_mirrored, 2 replicas x 8" in found.only_second
    assert "Only in A, so without a ratio: in_graph, 4 rep" in comparison.build(found)
