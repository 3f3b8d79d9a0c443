"""What lies where the harness writes, and clocks that are set back."""

import datetime as dt
import errno
import itertools
import json
import os
import re

import pytest
from loads import QUIET

from harness.cli import exit_codes
from harness.machine import disturbance
from harness.run import trial_runner
from results.store.study_store import Store


def test_status_without_a_plan_shows_what_ran(finished, harness, tmp_path):
    (tmp_path / "runs" / "s" / "plan.json").write_text("{")
    code, out, err = harness("status", "s")
    _, data, _ = harness("status", "s", "--json")

    assert (exit_codes.USAGE, "s: 8 trials: 8 ok\n") == (code, out)
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


def test_a_path_without_permission_is_one_line(refuse, monkeypatch):
    def forbid(_):
        raise PermissionError(errno.EACCES, "Permission denied", "runs")

    monkeypatch.setattr("results.store.atomic.check_reachable", forbid)
    err = refuse("sweep", "--dry-run", "--workload=resnet50")

    assert "error: cannot use 'runs': Permission denied; choose another path, or" in err


def test_figures_beyond_the_most_are_said_to_be_left_out(
    tmp_path, synthetic, harness, monkeypatch
):
    """Names come from records, and each would be drawn."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path / "runs" / "s", shape)
    monkeypatch.setattr("reports.words.ratio_table.MOST_FIGURES", 1)
    for path in store.root.rglob("result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["curve"]):
            part["quality"] += [{**part["quality"][0], "name": "another"}]
        path.write_text(json.dumps(result))
    code, _, err = harness("report", "s")

    assert exit_codes.OK == code, err
    page = store.report_path.read_text()
    assert 2 == len(re.findall(r"more figures? with other names omitted", page))


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
    options = ("--replicas=1,2", "--mode=weak", "--no-match", *order, "--study=s")
    request = ("--workload=resnet50", "--preset=smoke", "--backends=in_graph")
    code, _, err = harness("sweep", *request, *options, overrides=real_rule)
    verified, said, complaints = harness("verify", "s")
    trials = Store.open(tmp_path / "runs" / "s").trials()
    statuses = [trial.status for trial in trials if trial.status is not None]

    assert exit_codes.OK == code, err
    assert exit_codes.OK == verified, said + complaints
    assert 2 <= len(statuses)
    assert all(status.ended_at < status.started_at for status in statuses)
    assert all(0.0 < status.duration_sec < 600.0 for status in statuses)
