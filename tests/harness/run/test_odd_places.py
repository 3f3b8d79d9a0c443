"""What lies where the harness writes: links, pipes and plans that cannot be read."""

import errno
import json
import os
import re

import pytest

from harness.cli import arguments, exit_codes
from harness.errors import PlanError
from harness.planning import plan_count
from reports.charts.drawing import svg
from reports.page.sections import learning
from reports.words import formats
from results.records.limits import MAX_TRIALS


def test_status_without_a_plan_shows_what_ran(finished, harness, tmp_path):
    (tmp_path / "runs" / "s" / "plan.json").write_text("{")
    code, out, err = harness("status", "s")
    _, data, _ = harness("status", "s", "--json")

    assert exit_codes.USAGE == code
    assert "s: 8 trials: 8 ok\n" == out
    assert err.startswith("error: corrupt record 'runs/s/plan.json': not JSON")
    assert 1 == err.count("\n")
    assert {"ok": 8} == json.loads(data)["counts"]


def test_a_report_replaces_nothing_but_files(finished, refuse, tmp_path, monkeypatch):
    """As root it would put a page in the place of a device."""
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: "a page\n")
    os.mkfifo(tmp_path / "pipe")
    err = refuse("report", "s", "-o", "pipe")

    assert "cannot write report 'pipe': it is not a regular file" in err
    assert (tmp_path / "pipe").is_fifo()


def test_a_path_without_permission_is_one_line(harness, monkeypatch):
    """Wherever the file system refuses."""

    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied", "runs")

    monkeypatch.setattr("results.store.atomic.check_reachable", refuse)
    code, out, err = harness("sweep", "--dry-run", "--workload=resnet50")

    assert (exit_codes.USAGE, "") == (code, out)
    assert "error: cannot use 'runs': Permission denied; choose another path, or" in err


def test_a_missing_file_of_ours_is_no_refusal():
    """An internal error is not blamed on a path."""
    assert arguments.refusal(FileNotFoundError(errno.ENOENT, "No such", "x")) is None
    assert arguments.refusal(OSError("no file in it")) is None


def test_too_many_trials_are_counted_not_made():
    plan_count.check(MAX_TRIALS)
    with pytest.raises(
        PlanError, match=rf"has {MAX_TRIALS + 1} trials, .*{MAX_TRIALS}:"
    ):
        plan_count.check(MAX_TRIALS + 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e100, "1.00e+100"),
        (1e-300, "1.00e-300"),
        (float("inf"), "inf"),
        (-1e99, "-1."),
    ],
)
def test_figures_of_any_size_are_written_in_few_signs(value, expected):
    """A hundred zeros leave no room for a figure."""
    assert formats.significant(value).startswith(expected)
    assert len(formats.percent(value)) < 20
    assert len(formats.times(value)) < 20


def test_long_ticks_are_cut():
    """The unit of a metric can be long."""
    assert "12 " + "x" * 16 + svg.CUT == svg.short("12 " + "x" * 90)


def test_figures_beyond_the_most_are_said_to_be_left_out(
    tmp_path, synthetic, monkeypatch
):
    """Names come from records, and each would be drawn."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path / "study", shape)
    from reports.page import build
    from reports.page.sections import quality
    from reports.words import axes

    monkeypatch.setattr(build, "SECTIONS", (learning, quality))
    for path in store.root.rglob("result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["curve"]):
            part["quality"] += [{**part["quality"][0], "name": "another"}]
        path.write_text(json.dumps(result))

    assert "omitted: the records" not in build.build_report(store)

    monkeypatch.setattr(axes, "MOST_FIGURES", 1)
    page = build.build_report(store)

    assert 2 == len(re.findall(r"more figures? with other names omitted", page))
