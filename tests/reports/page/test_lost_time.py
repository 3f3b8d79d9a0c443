"""Where the time went: in the page, the terminal and the JSON, only where measured."""

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
from results.figures import summary
from results.figures.lost_time import PARTS


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
    """A section without content is not shown."""
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
    """With ends, method and reasons; it is valid JSON."""
    found = json.loads(json.dumps(summary.summary(store), allow_nan=False))
    first = found["lost_time"][0]

    assert ["in_graph", 2] == [first["backend"], first["num_replicas"]]
    assert list(PARTS) == [part["name"] for part in first["lost_time"]["parts"]]
    assert 4 == first["lost_time"]["num_generations"]
    # The case, one replica, nosync, solo, and synthetic twice, in four generations.
    assert 6 * 4 == len(first["trial_ids"])
    assert {"efficiency_of_best"} <= found["points"][0].keys()
