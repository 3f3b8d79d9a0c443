"""Where the time went, in page, terminal and JSON: parts, input, utilisation."""

import io
import json
import re

import pytest
import rich.console
from plain_text import visible
from synthetic import ALL_CONTROLS, Lost, relay_shape

from reports.exports import text
from reports.page import build
from reports.page.sections import lost_time
from reports.view import view_store
from reports.words import verdict
from results import load_study
from results.figures import scaling, summary
from results.figures.lost_time import PARTS
from results.records.models import Control


def data_of(store):
    return json.loads(json.dumps(summary.summary(store), allow_nan=False))


def printed(store, width):
    stream = io.StringIO()
    text.print_summary(store, rich.console.Console(file=stream, width=width))
    return stream.getvalue()


@pytest.fixture(scope="module")
def store(make):
    """Two backends; nosync and synthetic are controls of the first."""
    lost = {"in_graph": Lost(contention=0.006)}
    return make(relay_shape(backends=("in_graph", "tf_mirrored"), lost=lost))


@pytest.fixture(scope="module")
def page(store):
    return build.build_report(store)


def test_the_page_has_a_waterfall_of_every_case_with_a_control(page):
    """In words for those who do not see it; a part that was not measured says why."""
    section = page.partition('<section id="lost-time"')[2].partition("</section>")[0]
    descriptions = re.findall(r"<desc [^>]*>([^<]*)</desc>", section)

    assert "in_graph x2" in section
    assert "tf_mirrored x2" in section
    assert 2 == len(descriptions)
    for name in ("contention", "exposed communication", "input", "unexplained"):
        assert re.search(
            rf"{name} -?[\d.]+ \[-?[\d.]+,\s-?[\d.]+\] ms", descriptions[0]
        )
    assert "exposed communication" not in descriptions[1]
    assert "nosync was not measured: part of unexplained" in section
    assert "the replicas share a process" in section


def test_the_section_is_in_the_navigation_only_where_there_are_controls(page, make):
    plain = build.build_report(make(relay_shape(controls=(), repeats=2, num_rounds=2)))

    assert '<a href="#lost-time">Where the time went</a>' in page
    assert "lost-time" not in plain


def test_programs_that_never_communicate_are_the_ceiling_of_the_throughput(page):
    """A line in each of the three quantities, and in words too."""
    of = dict(re.findall(r"<desc id=\"(\w+)-weak-desc\">([^<]*)</desc>", page))

    assert re.search(r"never communicate: \d+ at 2 replicas", of["throughput"])
    assert re.search(r"never communicate: \d+\s% at 2 replicas", of["efficiency"])
    assert "never communicate: " in of["speedup"]
    assert 1 == page.count("Short line: the ceiling")


def test_cases_that_cannot_be_compared_say_so(make):
    shape = relay_shape(is_without_common_round=True, repeats=2)
    shown = lost_time.render(view_store(make(shape)))

    assert "Not compared: no round of any run has a valid block of" in shown


def test_the_terminal_has_at_most_six_lines_of_it(store):
    """Of the case with the most parts; all figures in ms with equal decimals."""
    lines = lost_time.lines(view_store(store))

    assert 5 == len(lines)
    assert re.match(r"step of in_graph x2: \d\d\.\d \[.*\] ms; one replica ", lines[0])
    assert all(len(line) <= 80 for line in lines)
    assert "where the time went, ms per step" in printed(store, 80)
    for line in lines[1:]:
        assert re.search(r" -?\d+\.\d \[-?\d+\.\d,\s-?\d+\.\d\]$", line)


def test_the_json_has_all_parts_and_their_trials(store):
    found = data_of(store)
    first = found["lost_time"][0]

    assert ["in_graph", 2] == [first["backend"], first["num_replicas"]]
    assert list(PARTS) == [part["name"] for part in first["lost_time"]["parts"]]
    assert 4 == first["lost_time"]["num_generations"]
    # The case, one replica, nosync, solo, and synthetic twice, in four generations.
    assert 6 * 4 == len(first["trial_ids"])
    assert {"efficiency_of_best"} <= found["points"][0].keys()


NUMBER = r"\d+\s% \[\d+,\s\d+\]"


@pytest.mark.parametrize(
    ("pipelines", "repeats", "line", "headline", "judged"),
    [
        (
            0.063,
            4,
            (
                rf"input-bound: the input pipelines alone take .* ms, {NUMBER} of the "
                r"step; faster replicas would wait for their batches$"
            ),
            # Beside the speedup, which would be called poor scaling otherwise.
            (
                r"in_graph is input-bound with 2 replicas: its input pipelines alone "
                rf"take {NUMBER} of a step, longer than the step of one replica, so the"
            ),
            ("input-bound", True),
        ),
        (
            0.010,
            4,
            r"not input-bound: .*its batches arrive before they are needed$",
            "",
            ("not input-bound", False),
        ),
        (
            0.063,
            1,
            r"inconclusive: the .* take .*whether it is input-bound is inconclusive$",
            "",
            ("inconclusive", False),
        ),
    ],
    ids=["bound", "not bound", "one run"],
)
def test_what_the_pipelines_take_alone_is_judged(
    make, pipelines, repeats, line, headline, judged
):
    lost = {"in_graph": Lost(input=0.008, pipelines=pipelines)}
    controls = (*ALL_CONTROLS, Control.INPUT_ONLY)
    store = make(relay_shape(lost=lost, controls=controls, repeats=repeats))
    view = view_store(store)
    (item,) = data_of(store)["lost_time"]
    bound = item["lost_time"]["input_bound"]
    last = lost_time.lines(view)[-1]

    assert re.match(line, last.lstrip()), last
    assert last in printed(store, 300)
    assert judged == (bound["verdict"], bound["explains_loss"])
    assert pytest.approx(pipelines, rel=0.1) == bound["input_sec"]["value"]
    # The case, one replica, nosync, solo, synthetic twice, and the pipelines alone.
    assert 7 * repeats == len(item["trial_ids"])
    findings = " ".join(finding.sentence for finding in verdict.findings(view))
    is_said = bool(headline)
    assert is_said == ("input-bound" in findings)
    assert is_said == ("Input-bound: the input pipelines" in lost_time.render(view))
    if is_said:
        assert re.search(headline, findings)
        assert bound["fraction"]["low"] < bound["fraction"]["value"]


PEAK = 2e9
FLOPS_PER_EXAMPLE = 1_000_000


def test_utilisation_is_the_rate_of_the_model_over_all_peaks(make):
    """Two processes have two peaks; the interval is over generations."""
    store = make(relay_shape(num_ranks=2, peak_flops_per_sec=PEAK))
    shown = visible(str(lost_time.render(view_store(store))))

    for case in load_study(store).cases:
        for entry in case.ok_entries:
            total = PEAK * len(entry.result.ranks)
            expected = scaling.throughput_of(entry) * FLOPS_PER_EXAMPLE / total
            assert scaling.flop_utilisation_of(entry) == pytest.approx(expected)
    for point in summary.summary(store)["points"]:
        part, rate = point["flop_utilisation"], point["throughput"]
        assert part["n"] == rate["n"] == 4
        for name in ("value", "low", "high"):
            expected = rate[name] * FLOPS_PER_EXAMPLE / (PEAK * point["num_replicas"])
            assert part[name] == pytest.approx(expected, rel=1e-6)
    assert "Model FLOP utilisation Of the 2.00 GFLOP/s per replica" in shown
    for number in (1, 2):
        row = rf"in_graph {number} 8 \d\.\d+ % \[\d\.\d+, \d\.\d+\] 4"
        assert re.search(row, shown)


def test_nothing_is_said_where_a_peak_is_missing(store):
    assert "FLOP utilisation" not in lost_time.render(view_store(store))
    assert {None} == {p["flop_utilisation"] for p in summary.summary(store)["points"]}
