"""What lies where the harness writes: links, pipes and plans that cannot be read."""

import ast
import datetime as dt
import errno
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from loads import QUIET

from harness.cli import arguments, exit_codes
from harness.errors import PlanError
from harness.machine import disturbance
from harness.planning import checked
from harness.run import trial_runner
from reports.charts import style
from reports.words import formats
from results.records.limits import MAX_TRIALS
from results.store.study_store import Store


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
    checked.check_number(MAX_TRIALS)
    with pytest.raises(
        PlanError, match=rf"has {MAX_TRIALS + 1} trials, .*{MAX_TRIALS}:"
    ):
        checked.check_number(MAX_TRIALS + 1)


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
    assert "12 " + "x" * 16 + style.CUT == style.short("12 " + "x" * 90)


def test_figures_beyond_the_most_are_said_to_be_left_out(
    tmp_path, synthetic, monkeypatch
):
    """Names come from records, and each would be drawn."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path / "study", shape)
    from reports.page import build
    from reports.words import ratio_table

    monkeypatch.setattr(
        build,
        "SECTIONS",
        [s for s in build.SECTIONS if s.SLUG in ("learning", "quality")],
    )
    for path in store.root.rglob("result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["curve"]):
            part["quality"] += [{**part["quality"][0], "name": "another"}]
        path.write_text(json.dumps(result))

    assert "omitted: the records" not in build.build_report(store)

    monkeypatch.setattr(ratio_table, "MOST_FIGURES", 1)
    page = build.build_report(store)

    assert 2 == len(re.findall(r"more figures? with other names omitted", page))


ROOT = Path(__file__).resolve().parents[3]
# Calls that read a clock which people and NTP can set.
WALL = {("time", "time"), ("time", "time_ns")} | {
    (name, call) for name in ("datetime", "date") for call in ("now", "utcnow", "today")
}
# What such a call looks like, whoever is called: most files need not be parsed.
LIKE_WALL = re.compile(rf"\.\s*(?:{'|'.join({call for _, call in WALL})})\s*\(")


def wall_clocks_of(path):
    text = path.read_text(encoding="utf-8")
    if not LIKE_WALL.search(text):
        return set()
    calls = (
        node.func
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    return {
        ast.unparse(call)
        for call in calls
        if (ast.unparse(call.value).rpartition(".")[2], call.attr) in WALL
    }


def test_one_module_reads_the_clock_of_the_wall():
    """Whatever is a duration, or an order, comes from a monotonic clock."""
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("harness", "results", "reports", "workloads", "replicator")
        for path in (ROOT / package).rglob("*.py")
        if wall_clocks_of(path)
    }

    assert {"harness/machine/machine_state.py"} == found


@pytest.mark.processes
@pytest.mark.usefixtures("forked_trials")
@pytest.mark.parametrize(
    "order",
    [
        ("--order=sequential", "--repeats=1"),
        ("--order=relay", "--repeats=2", "--rounds=3", "--budget=none"),
    ],
    ids=["sequential", "relay"],
)
def test_a_clock_that_is_set_back_changes_no_figure(
    order, harness, overrides, monkeypatch, tmp_path
):
    """An hour at every look: durations and figures are as they would have been."""
    hours = itertools.count()
    start = dt.datetime(2026, 3, 29, 3, tzinfo=dt.timezone.utc)

    def now_text():
        return (start - dt.timedelta(hours=next(hours))).isoformat()

    monkeypatch.setattr(trial_runner, "now_text", now_text)
    # Verifying applies the rule for turns anew, so it must have been the real one.
    monkeypatch.setattr(disturbance, "between", lambda _before, _after: QUIET)
    real_rule = overrides | {"void_reason": disturbance.void_reason}
    options = ("--replicas=1,2", "--mode=weak", "--no-match", *order)
    request = ("--workload=resnet50", "--preset=smoke", "--backends=in_graph")
    code, _, err = harness(
        "sweep", *request, *options, "--study=s", overrides=real_rule
    )
    verified, said, complaints = harness("verify", "s")
    statuses = [
        trial.status
        for trial in Store.open(tmp_path / "runs" / "s").trials()
        if trial.status is not None
    ]

    assert exit_codes.OK == code, err
    assert exit_codes.OK == verified, said + complaints
    assert 2 <= len(statuses)
    assert all(status.ended_at < status.started_at for status in statuses)
    assert all(0.0 < status.duration_sec < 600.0 for status in statuses)
