"""The wall clock is set back within a sweep: it names times, and measures none."""

import ast
import datetime as dt
import itertools
import re
from pathlib import Path

import pytest
from loads import QUIET

from harness.cli import exit_codes
from harness.machine import disturbance
from harness.run import trial_runner
from results.store.study_store import Store

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
