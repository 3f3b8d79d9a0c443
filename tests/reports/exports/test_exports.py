"""Text of a study: Markdown, JSON and CSV."""

import io
import json
import re
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

from reports.exports import exports
from reports.words import formats
from results.figures import frame

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schema/report.schema.json").read_text()
)


@pytest.mark.parametrize("name", ["complete", "broken", "failed"])
def test_json_has_verdict_and_figures(name, request):
    data = json.loads(exports.as_json(request.getfixturevalue(name)))

    jsonschema.validate(data, SCHEMA)
    assert data["verdict"]["headline"]
    assert 3 == data["report_version"]
    for field in ("verdict", "figures", "coverage"):
        rest = {key: value for key, value in data.items() if key != field}
        with pytest.raises(jsonschema.ValidationError, match=field):
            jsonschema.validate(rest, SCHEMA)


def test_markdown_fits_a_pull_request(complete, failed):
    lines = exports.as_markdown(complete).splitlines()
    of_failed = exports.as_markdown(failed)

    assert lines[0] == "### resnet50-laptop-synthetic"
    assert re.match(r"\*\*ResNet-50 trains 1\.\d times as fast on two cores", lines[2])
    assert 6 == sum(line.startswith(("| in_graph", "| tf_")) for line in lines)
    assert any(line.startswith("- Intervals are 95 %") for line in lines)
    assert exports.MOST_LINES >= len(lines)
    assert "**Nothing was measured" in of_failed
    assert "| backend" not in of_failed


def test_markdown_of_a_large_study_has_at_most_forty_lines(make, synthetic):
    fields = {"modes": (synthetic.WEAK,), "repeats": 2, "num_measured_steps": 2}
    large = make(replicas=tuple(range(1, 25)), **fields)
    text = exports.as_markdown(large)

    assert exports.MOST_LINES >= len(text.splitlines())
    command = f"python -m harness report {large.read_plan().study} --format csv"
    assert f"30 more cases: `{command}`." in text
    assert re.search(rf"\| in_graph \| weak \| 24 {formats.TIMES} 8 .*oversub", text)


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
    assert expected == formats.escaped(text)


def test_csv_is_the_frame_that_figures_draw(complete, broken):
    csv = io.StringIO(exports.csv_of_studies([complete, broken]))
    read = pd.read_csv(csv, low_memory=False)
    points = frame.points_frame(complete)

    assert ["study", *points.columns] == [*read.columns]
    assert len(points) + len(frame.points_frame(broken)) == len(read)
    assert points["value"].tolist() == read["value"].tolist()[: len(points)]
