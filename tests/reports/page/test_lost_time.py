"""Where the time went, in page, terminal and JSON: parts, input, utilisation."""

import io
import json
import re

import pytest
import rich.console
from relay_study import ALL, Lost, RelayShape, make_store

from reports.exports import text
from reports.page import build
from reports.page.sections import lost_time
from reports.view.view import view_store
from reports.words import utilisation, verdict
from results.figures import scaling, summary
from results.figures.lost_time import PARTS
from results.records.models import Control
from results.study.cases import load_study


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    shape = RelayShape(
        backends=("in_graph", "tf_mirrored"),
        lost={"in_graph": Lost(contention=0.006)},
        controls=ALL,
    )
    return make_store(tmp_path_factory.mktemp("relay"), shape)


@pytest.fixture(scope="module")
def page(store):
    return build.build_report(store)


@pytest.fixture(scope="module")
def section(page):
    return page.partition('<section id="lost-time"')[2].partition("</section>")[0]


def test_the_page_has_a_waterfall_of_every_case_with_a_control(section):
    """With its parts in words for those who do not see it."""
    descriptions = re.findall(r"<desc [^>]*>([^<]*)</desc>", section)

    assert "in_graph x2" in section
    assert "tf_mirrored x2" in section
    assert 2 == len(descriptions)
    for name in ("contention", "exposed communication", "input", "unexplained"):
        assert re.search(
            rf"{name} -?[\d.]+ \[-?[\d.]+,\s-?[\d.]+\] ms", descriptions[0]
        )
    assert "exposed communication" not in descriptions[1]


def test_a_part_that_was_not_measured_says_why(section):
    """It is in the table, not in the figure."""
    assert "nosync was not measured: part of unexplained" in section
    assert "the replicas share a process" in section


def test_the_section_is_in_the_navigation_only_where_there_are_controls(page, tmp_path):
    plain = build.build_report(
        make_store(tmp_path, RelayShape(controls=(), generations=2, rounds=2))
    )

    assert '<a href="#lost-time">Where the time went</a>' in page
    assert "lost-time" not in plain


def test_programs_that_never_communicate_are_the_ceiling_of_the_throughput(page):
    """A line in each of the three quantities, and in words too."""
    described = re.findall(r"<desc id=\"(\w+)-weak-desc\">([^<]*)</desc>", page)
    of = dict(described)

    assert "never communicate: " in of["throughput"]
    assert re.search(r"never communicate: \d+ at 2 replicas", of["throughput"])
    assert re.search(r"never communicate: \d+\s% at 2 replicas", of["efficiency"])
    assert "never communicate: " in of["speedup"]
    assert 1 == page.count("Short line: the ceiling")


def test_cases_that_cannot_be_compared_say_so(tmp_path):
    shape = RelayShape(is_without_common_round=True, generations=2)
    shown = lost_time.render(view_store(make_store(tmp_path, shape)))

    assert "Not compared: no round of any generation has a valid turn of" in shown


def test_the_terminal_has_at_most_six_lines_of_it(store):
    """Of the case with the most parts; all figures in ms with equal decimals."""
    lines = lost_time.lines(view_store(store))
    stream = io.StringIO()
    text.print_summary(store, rich.console.Console(file=stream, width=80))

    assert 5 == len(lines)
    assert re.match(r"step of in_graph x2: \d\d\.\d \[.*\] ms; one replica ", lines[0])
    assert all(len(line) <= 80 for line in lines)
    assert "where the time went, ms per step" in stream.getvalue()
    for line in lines[1:]:
        assert re.search(r" -?\d+\.\d \[-?\d+\.\d,\s-?\d+\.\d\]$", line)


def test_the_json_has_all_parts_and_their_trials(store):
    found = json.loads(json.dumps(summary.summary(store), allow_nan=False))
    first = found["lost_time"][0]

    assert ["in_graph", 2] == [first["backend"], first["num_replicas"]]
    assert list(PARTS) == [part["name"] for part in first["lost_time"]["parts"]]
    assert 4 == first["lost_time"]["num_generations"]
    # The case, one replica, nosync, solo, and synthetic twice, in four generations.
    assert 6 * 4 == len(first["trial_ids"])
    assert {"efficiency_of_best"} <= found["points"][0].keys()


NUMBER = r"\d+\s% \[\d+,\s\d+\]"


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def make_one(pipelines, **changes):
        shape = RelayShape(
            backends=("in_graph",),
            lost={"in_graph": Lost(input=0.008, pipelines=pipelines)},
            controls=(*ALL, Control.INPUT_ONLY),
            **changes,
        )
        return make_store(tmp_path_factory.mktemp("relay"), shape)

    return make_one


@pytest.fixture(scope="module")
def bound(make):
    return make(0.063)


def test_the_headline_says_that_the_loss_is_that_of_the_input(bound):
    """Beside the speedup, which would be called poor scaling otherwise."""
    judged = verdict.judge(view_store(bound))

    assert re.search(
        rf"It is input-bound with 2 replicas: its input pipelines alone take {NUMBER} "
        r"of a step, longer than the step of one replica, so the loss is that of the "
        r"input\.$",
        judged.headline,
    )
    assert any("input-bound" in finding.sentence for finding in judged.findings)


def test_the_section_and_the_terminal_say_what_the_pipelines_take(bound):
    section = lost_time.render(view_store(bound))
    stream = io.StringIO()
    text.print_summary(bound, rich.console.Console(file=stream, width=300))
    line = lost_time.lines(view_store(bound))[-1]

    assert re.search(
        rf"input-bound: the input pipelines alone take \d\d\.\d \[.*\] ms, {NUMBER} of"
        r" the step; faster replicas would wait for their batches$",
        line,
    )
    assert line in stream.getvalue()
    assert "Input-bound: the input pipelines alone take" in section


def test_a_case_that_is_not_input_bound_is_not_called_so(make):
    not_bound = make(0.010)
    (item,) = summary.summary(not_bound)["lost_time"]
    found = item["lost_time"]["input_bound"]
    judged = verdict.judge(view_store(not_bound))
    line = lost_time.lines(view_store(not_bound))[-1]

    assert "input-bound" not in " ".join(f.sentence for f in judged.findings)
    assert "input-bound" not in judged.headline
    assert line.lstrip().startswith("not input-bound: the input pipelines alone take")
    assert line.endswith("its batches arrive before they are needed")
    assert pytest.approx(0.010, rel=0.1) == found["input_sec"]["value"]
    assert not found["explains_loss"]


def test_one_generation_is_inconclusive(make):
    store = make(0.063, generations=1)
    line = lost_time.lines(view_store(store))[-1]

    assert "inconclusive: the input pipelines alone take" in line
    assert line.endswith("whether it is input-bound is inconclusive")
    assert "input-bound" not in verdict.judge(view_store(store)).headline


def test_the_json_has_the_verdict_and_its_interval(bound):
    found = json.loads(json.dumps(summary.summary(bound), allow_nan=False))
    (item,) = found["lost_time"]
    judged = item["lost_time"]["input_bound"]

    assert ["input-bound", True] == [judged["verdict"], judged["explains_loss"]]
    assert judged["fraction"]["low"] < judged["fraction"]["value"]
    assert pytest.approx(0.063, rel=0.1) == judged["input_sec"]["value"]
    # The case, one replica, nosync, solo, synthetic twice, and the pipelines alone.
    assert 7 * 4 == len(item["trial_ids"])


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
