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
from reports.view import view_store
from reports.words import formats
from results.figures import frame

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schema/report.schema.json").read_text()
)


@pytest.mark.parametrize("name", ["complete", "broken", "failed"])
def test_json_has_verdict_and_figures(name, request):
    """As the published schema says, also where nothing was measured."""
    data = json.loads(exports.as_json(request.getfixturevalue(name)))

    jsonschema.validate(data, SCHEMA)
    assert data["verdict"]["headline"]
    assert (name != "failed") == bool(data["verdict"]["findings"])
    for field in ("verdict", "points", "coverage"):
        rest = {key: value for key, value in data.items() if key != field}
        with pytest.raises(jsonschema.ValidationError, match=field):
            jsonschema.validate(rest, SCHEMA)


def test_markdown_fits_a_pull_request(complete, failed):
    """Badge, verdict, a row per case, and the limits; of a failed study, too."""
    lines = exports.as_markdown(complete).splitlines()
    of_failed = exports.as_markdown(failed)

    assert lines[0] == "### resnet50-laptop-synthetic"
    assert re.fullmatch(
        r"`weak scaling efficiency: [\d.]+ % \[[\d.]+, [\d.]+\] at 2 replicas`",
        lines[2],
    )
    assert re.match(r"\*\*.*in_graph keeps [\d.]+.% \[", lines[4])
    assert 8 == sum(line.startswith(("| in_graph", "| tf_")) for line in lines)
    assert any(line.startswith("- Intervals are 95 %") for line in lines)
    assert exports.MOST_LINES >= len(lines)
    assert "`scaling: no verdict`" in of_failed
    assert "**Nothing was measured" in of_failed
    assert "| backend" not in of_failed


def test_markdown_of_a_large_study_has_at_most_forty_lines(make, synthetic):
    """The largest cases are kept, and what is left out is said."""
    fields = {"modes": (synthetic.WEAK,), "repeats": 2, "num_measured_steps": 2}
    large = make(replicas=tuple(range(1, 25)), **fields)
    text = exports.as_markdown(large)

    assert exports.MOST_LINES >= len(text.splitlines())
    command = f"python -m harness report {large.read_plan().study} --format csv"
    assert f"30 more cases: `{command}`." in text
    assert re.search(r"\| in_graph \| weak \| 24 \(oversub", text)


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


def test_csv_is_the_frame_that_figures_draw(complete, broken):
    csv = io.StringIO(exports.csv_of_studies([complete, broken]))
    read = pd.read_csv(csv, low_memory=False)
    points = frame.points_frame(complete)

    assert ["study", *points.columns] == [*read.columns]
    assert len(points) + len(frame.points_frame(broken)) == len(read)
    assert points["value"].tolist() == read["value"].tolist()[: len(points)]


@pytest.fixture(scope="module")
def shown(make):
    """Returns a function that prints a study into so many columns."""
    names = ("in_graph", "tf_mirrored", "multi_worker_in_graph")
    store = make(backends=names, num_measured_steps=3)

    def show(width):
        stream = io.StringIO()
        console = rich.console.Console(file=stream, width=width)
        text.print_summary(store, console)
        printed = stream.getvalue()
        table = printed.partition("resnet50-laptop-synthetic")[2]
        rows = table.partition("N: repl")[0].splitlines()
        return printed, rows, text.columns_that_fit(view_store(store), console)

    return show


def numbers(lines):
    return set(re.findall(r"\d+\.?\d*", " ".join(lines)))


@pytest.mark.parametrize("width", [140, 100, 80, 60, 50])
def test_every_row_fits_and_no_number_is_cut(shown, width):
    """Columns that matter most are the last to go; what is missing is said."""
    _, wide, _ = shown(200)
    printed, rows, columns = shown(width)
    words = " ".join(printed.split())

    assert all(len(line) <= width for line in rows)
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed
    assert numbers(rows) <= numbers(wide)
    assert any("efficiency" in line for line in rows)
    assert sum("multi_worker_in_graph" in line for line in rows) >= 4
    assert {"weak", "strong"} <= set(" ".join(rows).split())
    assert ("have no room" in words) == (columns != text.COLUMNS) == (width < 100)
    if width == 60:
        assert "60 columns have no room for: images/s, " in words
