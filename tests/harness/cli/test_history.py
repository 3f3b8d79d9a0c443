"""``history`` prints one table per case and machine class, in three formats."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes
from reports.words import formats
from results.statistics.change_points import FEWEST

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runs(template: Path, tmp_path: Path) -> Path:
    """Returns a directory with ten studies, of which the last four are slower."""
    root = tmp_path / "runs"
    for index in range(10):
        study = root / f"day-{index}"
        shutil.copytree(template / "runs" / "s", study)
        for path in study.glob("trials/*/*.json"):
            fields = json.loads(path.read_text())
            if path.name == "status.json":
                fields["started_at"] = f"2026-01-0{index}T12:00:00+00:00"
            if path.name == "result.json":
                slower = 1.25 if index > 5 else 1.0
                fields["window_sec"] *= slower * (1 + 0.001 * (index * 7 % 5))
            path.write_text(json.dumps(fields))
        plan = study / "plan.json"
        fields = json.loads(plan.read_text()) | {"study": f"day-{index}"}
        plan.write_text(json.dumps(fields))
    return root


@pytest.mark.usefixtures("runs")
def test_the_table_names_the_change(harness: Any) -> None:
    """Of every study in the runs directory, without naming one."""
    code, out, err = harness("history")
    changes = [line for line in out.splitlines() if "from here on" in line]

    assert exit_codes.OK == code
    assert "" == err
    assert 4 == out.count("1 change in 10 studies")
    assert 4 == len(changes)
    assert all("day-6" in line and "2026-01-06 12:00" in line for line in changes)
    change = re.compile(r"-(19|20)\.\d.% \[-2\d\.\d,.-19\.\d\] from here on")
    assert all(change.search(line) for line in changes)
    assert "resnet50 smoke, in_graph, 2 replicas x 4, on " in out


@pytest.mark.usefixtures("runs")
def test_json_and_markdown_have_the_same(harness: Any) -> None:
    """For scripts and for pull requests."""
    _, out, _ = harness("history", "--json")
    data = json.loads(out)
    _, markdown, _ = harness("history", "--markdown")
    rows = [line for line in markdown.splitlines() if line.startswith("| 2026")]

    assert FEWEST == data["fewest_for_change_points"]
    assert 4 == len(data["series"])
    assert 40 == len(rows) == sum(len(of["observations"]) for of in data["series"])
    assert 4 == sum("from here on" in row for row in rows)
    assert 4 == sum(
        seen["change"] is not None
        for series in data["series"]
        for seen in series["observations"]
    )
    assert 4 == markdown.count("### resnet50 smoke, ")


@pytest.mark.usefixtures("runs")
def test_few_studies_say_how_many_it_takes(harness: Any) -> None:
    """Named twice, a study counts once."""
    code, out, _ = harness("history", "day-0", "day-7", "runs/day-7")

    assert exit_codes.OK == code
    assert 4 == out.count(
        "2 studies: no change points, which take at least 8 of this case on this"
        " machine class"
    )


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("width", [120, 80, 60])
def test_a_narrow_terminal_lacks_columns_and_no_digit(
    harness: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Every figure is there in whole, and every line fits."""
    _, data, _ = harness("history", "--json")
    monkeypatch.setattr("harness.cli.terminal.PIPE_WIDTH", width)
    _, out, _ = harness("history")
    rows = [line for line in out.splitlines() if "day-" in line]

    assert 40 == len(rows)
    assert all(len(line) <= width for line in rows)
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    for series in json.loads(data)["series"]:
        for seen in series["observations"]:
            text = formats.significant(seen["throughput"]["value"])
            assert any(seen["study"] in row and f" {text} " in row for row in rows)


def test_an_unreadable_study_is_named_and_left_out(runs: Path, harness: Any) -> None:
    """Where all of a directory are meant; one that is named is an error."""
    (runs / "day-3" / "plan.json").write_text("{")
    code, out, err = harness("history")

    assert exit_codes.USAGE == code
    assert re.match(r"left out: corrupt record '.*day-3/plan.json'", err)
    assert 4 == out.count("1 change in 9 studies")

    code, out, err = harness("history", "day-3")
    assert exit_codes.USAGE == code
    assert re.match(r"error: corrupt record '.*day-3/plan.json'", err)
    assert "" == out


def test_studies_without_a_figure_have_no_series(runs: Path, harness: Any) -> None:
    """Every case is named with the reason; there is nothing to show."""
    for path in (runs / "day-1").glob("trials/*/status.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "void"}))
    code, out, err = harness("history", "day-1")

    assert exit_codes.NOTHING_MEASURED == code
    assert "" == out
    assert 4 == err.count("left out: day-1, ")
    assert err.endswith("no case of these studies has a figure\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"error: no study in 'runs': name studies or another --runs-dir, or run"),
        (("nothing",), r"error: no study at 'runs/nothing': the directory does not"),
        (("--json", "--markdown"), r"error: --json and --markdown exclude each other"),
    ],
)
def test_bad_requests(harness: Any, arguments: tuple[str, ...], message: str) -> None:
    """One line and exit code 2."""
    code, out, err = harness("history", *arguments)

    assert exit_codes.USAGE == code
    assert "" == out
    assert re.match(message, err)
    assert 1 == err.count("\n")
