"""Text of a study: Markdown, JSON, CSV, and the table of a terminal, narrow or wide."""

import io
import json
import re
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import rich.console

from reports.exports import exports, text
from reports.view.view import view_store
from reports.words import formats
from results.figures import frame

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schema/report.schema.json").read_text()
)


@pytest.fixture(scope="module")
def make(tmp_path_factory, synthetic):
    def make_study(**fields):
        root = tmp_path_factory.mktemp("study")
        return synthetic.make_store(root, synthetic.Shape(**fields))

    return make_study


@pytest.fixture(scope="module")
def good(make):
    return make()


@pytest.fixture(scope="module")
def broken(tmp_path_factory, synthetic):
    return synthetic.make_store(tmp_path_factory.mktemp("study"), synthetic.BROKEN)


@pytest.mark.parametrize("name", ["good", "broken", "failed"])
def test_json_has_verdict_and_figures(name, request):
    """As the published schema says, also where nothing was measured."""
    data = json.loads(exports.as_json(request.getfixturevalue(name)))

    jsonschema.validate(data, SCHEMA)
    assert data["verdict"]["headline"]
    assert (name != "failed") == bool(data["verdict"]["findings"])


@pytest.mark.parametrize("field", ["verdict", "points", "coverage"])
def test_the_schema_refuses_a_report_without(field, good):
    data = json.loads(exports.as_json(good))
    del data[field]

    with pytest.raises(jsonschema.ValidationError, match=field):
        jsonschema.validate(data, SCHEMA)


def test_markdown_fits_a_pull_request(good):
    """Badge, verdict, a row per case, and the limits."""
    lines = exports.as_markdown(good).splitlines()

    assert lines[0] == "### resnet50-laptop-synthetic"
    assert re.fullmatch(
        r"`weak scaling efficiency: [\d.]+ % \[[\d.]+, [\d.]+\] at 2 replicas`",
        lines[2],
    )
    assert re.match(r"\*\*.*in_graph keeps [\d.]+.% \[", lines[4])
    assert 8 == sum(line.startswith(("| in_graph", "| tf_")) for line in lines)
    assert any(line.startswith("- Intervals are 95 %") for line in lines)
    assert exports.MOST_LINES >= len(lines)


def test_markdown_of_a_large_study_has_at_most_forty_lines(make, synthetic):
    """The largest cases are kept, and what is left out is said."""
    large = make(
        modes=(synthetic.WEAK,),
        replicas=tuple(range(1, 25)),
        repeats=2,
        num_measured_steps=2,
    )
    text = exports.as_markdown(large)

    assert exports.MOST_LINES >= len(text.splitlines())
    command = f"python -m harness report {large.read_plan().study} --format csv"
    assert f"30 more cases: `{command}`." in text
    assert re.search(r"\| in_graph \| weak \| 24 \(oversub", text)


def test_markdown_of_a_failed_study_says_so(failed):
    text = exports.as_markdown(failed)

    assert "`scaling: no verdict`" in text
    assert "**Nothing was measured" in text
    assert "| backend" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("a*b", r"a\*b"),
        ("<b>", "&lt;b>"),
        ("[x](y)", r"[x]\(y)"),
        ("[1, 2]", "[1, 2]"),
        ("`x`", r"\`x\`"),
        ("@someone", "&#64;someone"),
        ("fixes #1, #b", "fixes &#35;1, #b"),
        ("https://a.example/x", "https:&#47;&#47;a.example/x"),
        ("www.a.example", "www&#46;a.example"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_of_records_is_no_markdown(text, expected):
    """Names and reasons are free text; intervals stay readable."""
    assert expected == formats.escaped(text)


def test_csv_is_the_frame_that_figures_draw(good, broken):
    """Every row and number, with the study as first column."""
    read = pd.read_csv(
        io.StringIO(exports.csv_of_studies([good, broken])), low_memory=False
    )
    points = frame.points_frame(good)

    assert "study" == read.columns[0]
    assert [*points.columns] == [*read.columns[1:]]
    assert len(points) + len(frame.points_frame(broken)) == len(read)
    assert points["value"].tolist() == read["value"].tolist()[: len(points)]


CUT = "\N{HORIZONTAL ELLIPSIS}"


@pytest.fixture(scope="module")
def three_backends(tmp_path_factory, synthetic):
    shape = synthetic.Shape(
        backends=("in_graph", "tf_mirrored", "multi_worker_in_graph"),
        repeats=3,
        num_measured_steps=3,
    )
    return synthetic.make_store(tmp_path_factory.mktemp("study"), shape)


def shown(three_backends, width):
    stream = io.StringIO()
    text.print_summary(three_backends, rich.console.Console(file=stream, width=width))
    printed = stream.getvalue()
    table = printed.partition("resnet50-laptop-synthetic")[2].partition("N: repl")[0]
    return printed, table.splitlines()


def numbers(lines):
    return set(re.findall(r"\d+\.?\d*", " ".join(lines)))


@pytest.mark.parametrize("width", [140, 100, 80, 60, 50])
def test_every_row_fits_and_no_number_is_cut(three_backends, width):
    """What is shown in a narrow table is what the wide one has."""
    _, wide = shown(three_backends, 200)
    printed, rows = shown(three_backends, width)

    assert all(len(line) <= width for line in rows)
    assert CUT not in printed
    assert numbers(rows) <= numbers(wide)
    assert any("efficiency" in line for line in rows)


def test_sixty_columns_keep_the_efficiency_and_say_what_is_missing(three_backends):
    """The columns that matter most are the last to go."""
    printed, rows = shown(three_backends, 60)

    assert "60 columns have no room for: images/s, " in " ".join(printed.split())
    assert sum("multi_worker_in_graph" in line for line in rows) >= 4
    assert {"weak", "strong"} <= set(" ".join(rows).split())


def test_a_wide_terminal_has_every_column(three_backends):
    printed, rows = shown(three_backends, 140)
    console = rich.console.Console(file=io.StringIO(), width=140)

    assert text.COLUMNS == text.columns_that_fit(view_store(three_backends), console)
    assert "have no room" not in printed
    assert any("of best" in line for line in rows)
