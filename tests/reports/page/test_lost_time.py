"""Where the time went, in page and JSON: parts, input, utilisation."""

import json
import re

import pytest
from command_lines import visible
from synthetic import ALL_CONTROLS, Lost, interleaving_shape

import reports
from reports import render_section, view_store
from results import Control, summary

PARTS = {
    *("alone", "contention", "exposed_communication", "input"),
    *("imbalance", "update", "unexplained"),
}


def data_of(store):
    return json.loads(json.dumps(summary(store), allow_nan=False))["figures"]


@pytest.fixture(scope="module")
def store(make):
    """Two backends; nosync and synthetic are controls of the first."""
    lost = {"in_graph": Lost(contention=0.006)}
    return make(interleaving_shape(backends=("in_graph", "tf_mirrored"), lost=lost))


@pytest.fixture(scope="module")
def page(store):
    return reports.build_report(store)


def test_steps_of_all_cases_are_split_on_one_axis(page):
    first, rest = page.split("</section>", 1)
    (description,) = re.findall(r'<desc id="lost-time-desc">([^<]*)</desc>', first)
    section = rest.partition('<section id="lost-time"')[2].partition("</section>")[0]

    for backend in ("in_graph", "tf_mirrored"):
        assert f"{backend}, 2 \N{MULTIPLICATION SIGN} 8: " in description
    for name in ("contention", "exposed communication", "input", "unexplained"):
        assert re.search(rf"{name} -?[\d.]+", description.partition(";")[0])
    assert "exposed communication" not in description.partition(";")[2]
    assert "<figure" not in section
    assert "nosync was not measured: part of unexplained" in section
    assert "the replicas share a process" in section


def test_the_section_is_in_the_navigation_only_where_there_are_controls(page, make):
    plain = reports.build_report(
        make(interleaving_shape(controls=(), repeats=2, num_rounds=2))
    )

    assert '<a href="#lost-time">Where the time goes</a>' in page
    assert "lost-time" not in plain


def test_programs_that_never_communicate_are_the_ceiling_of_the_efficiency(page, make):
    shape = interleaving_shape(replicas=(1, 2, 4))
    over_sizes = reports.build_report(make(shape))

    assert "Second dashed line: programs that never communicate." in page
    (described,) = re.findall(r'<desc id="hero-desc">([^<]*)</desc>', over_sizes)
    assert re.search(r"never communicate: \d+\s% at \d replicas", described)


def test_cases_that_cannot_be_compared_say_so(make):
    shape = interleaving_shape(is_without_common_round=True, repeats=2)
    shown = render_section("lost-time", view_store(make(shape)))

    assert "is not compared: no round of any run has a valid block of" in shown


def test_the_json_has_all_parts_or_why_one_is_missing(store):
    rows = [row for row in data_of(store) if row["num_replicas"] == 2]
    own = [row for row in rows if row["backend"] == "in_graph"]
    parts = {row["quantity"]: row for row in own if row["figure"] == "waterfall"}
    missing = {row["quantity"]: row for row in own if row["figure"] == "missing"}

    assert {*PARTS, "step"} <= {*parts, *missing}
    assert 4 == parts["step"]["n"]
    assert "the replicas share a process" in missing["imbalance"]["method"]
    assert "efficiency_of_best" in {row["quantity"] for row in rows}


NUMBER = r"\d+\s% \[\d+,\s\d+\]"


@pytest.mark.parametrize(
    ("pipelines", "repeats", "line", "judged"),
    [
        (
            0.063,
            4,
            (
                rf"is input-bound: its input pipelines alone take .* ms, {NUMBER} of"
                r" the step; faster replicas would wait for their batches\.$"
            ),
            "input-bound; explains the loss",
        ),
        (
            0.010,
            4,
            r"is not input-bound: .*its batches arrive before they are needed\.$",
            "not input-bound",
        ),
        (
            0.063,
            1,
            r"is inconclusive: .*whether it is input-bound is inconclusive\.$",
            "inconclusive",
        ),
    ],
    ids=["bound", "not bound", "one run"],
)
def test_what_the_pipelines_take_alone_is_judged(
    make, pipelines, repeats, line, judged
):
    lost = {"in_graph": Lost(input=0.008, pipelines=pipelines)}
    controls = (*ALL_CONTROLS, Control.INPUT_ONLY)
    store = make(interleaving_shape(lost=lost, controls=controls, repeats=repeats))
    view = view_store(store)
    bound, share = (row for row in data_of(store) if row["figure"] == "input")
    paragraphs = re.findall("<p>(.*)</p>", render_section("lost-time", view))
    (last,) = [text for text in paragraphs if "input pipelines alone" in text]

    assert re.search(line, last), last
    assert judged == bound["caveats"]
    assert pytest.approx(pipelines, rel=0.1) == bound["value"]
    assert ("low" in share) == (repeats > 1)


PEAK = 2e9
FLOPS_PER_EXAMPLE = 1_000_000


def test_utilisation_is_the_rate_of_the_model_over_all_peaks(make):
    store = make(interleaving_shape(num_ranks=2, peak_flops_per_sec=PEAK))
    shown = visible(render_section("lost-time", view_store(store)))

    rows = {
        (row["quantity"], row["num_replicas"]): row
        for row in data_of(store)
        if row["kind"] == "estimate"
    }
    for number in (1, 2):
        part, rate = rows["flop_utilisation", number], rows["throughput", number]
        assert part["n"] == rate["n"] == 4
        for name in ("value", "low", "high"):
            expected = rate[name] * FLOPS_PER_EXAMPLE / (PEAK * number)
            assert part[name] == pytest.approx(expected, rel=1e-6)
    assert "Model FLOP utilisation Of the 2.00 GFLOP/s per replica" in shown
    for number in (1, 2):
        row = rf"in_graph {number} 8 \d\.\d+ % \[\d\.\d+, \d\.\d+\] 4"
        assert re.search(row, shown)


def test_nothing_is_said_where_a_peak_is_missing(store):
    assert "FLOP utilisation" not in render_section("lost-time", view_store(store))
    assert "flop_utilisation" not in {row["quantity"] for row in data_of(store)}
