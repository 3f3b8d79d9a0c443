"""Sweeps and studies by the command line: tables, reports, failures, odd places."""

import datetime as dt
import errno
import itertools
import json
import os
import re

import pytest
from command_words import overridden
from loads import QUIET

from harness.cli import exit_codes
from harness.machine import disturbance
from harness.run import trial_runner
from reports.page import build
from results.records.models import SCHEMA_VERSION
from results.store import lock
from results.store.study_store import Store

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_trials")]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs" / "s"


@pytest.mark.usefixtures("with_pages")
def test_a_sweep_ends_with_table_and_report(
    harness, overrides, root, small, monkeypatch
):
    """The report is made anew by the same command; elsewhere, its path is data."""
    monkeypatch.setattr(build, "build_report", lambda *_: "<html>a page</html>\n")
    args = ("sweep", *overridden(small, "--repeats=1", "--no-match", "--study=s"))
    code, out, err = harness(*args, overrides=overrides)
    page = (root / "report" / "index.html").read_text()

    assert exit_codes.OK == code
    assert "images/s" in out
    assert "[4/4]   ok," in err
    assert "\x1b[" not in out + err
    assert "report: runs/s/report/index.html" in err
    assert "<html>a page</html>\n" == page

    monkeypatch.setattr(build, "build_report", lambda *_: "made anew")
    code, out, err = harness(*args, "--json", overrides=overrides)
    assert exit_codes.OK == code
    assert 4 == json.loads(out)["coverage"]["ok"]
    assert "4 trials, 4 already finished" in err
    assert "made anew" == (root / "report" / "index.html").read_text()
    code, out, _ = harness("report", "s", "-o", "elsewhere/r.html")
    assert (exit_codes.OK, "elsewhere/r.html\n") == (code, out)
    assert "made anew" == (root.parents[1] / "elsewhere" / "r.html").read_text()


@pytest.mark.usefixtures("finished")
def test_a_study_is_continued_as_it_was_planned(harness, refuse, small):
    """A longer one is estimated from it."""
    assert exit_codes.OK == harness("sweep", "--study", "s")[0]
    err = refuse("sweep", "--study", "s", "--repeats", "9")
    assert err.startswith("error: --repeats has no effect on a study that is continued")
    err = refuse("sweep", *small, "--study=s", "--seed=1")
    assert re.search(r"study 's' was made with seed 0, this sweep has 1", err)
    _, out, _ = harness("sweep", "--dry-run", *small, "--study=t", "--seed=5")
    assert "8 to run" in out
    assert "from earlier trials like these" in out


@pytest.mark.usefixtures("finished")
def test_a_corrupt_record_is_named_and_the_rest_is_readable(harness, root, small):
    store = Store.open(root)
    trial_id = store.trial_ids()[0]
    (store.trial_dir(trial_id) / "result.json").write_text('{"schema_version": 1')
    swept = harness("sweep", *small, "--study=s")
    resumed = harness("sweep", "--study", "s")
    status = harness("status", "s")
    reported = harness("report", "s")

    for code, _, err in (swept, resumed, status, reported):
        assert exit_codes.USAGE == code
        assert re.search(
            rf"error: corrupt record .*{trial_id}/result.json.*not JSON", err
        )
    assert "1 missing, 7 ok" in status[1]
    assert "remove its folder and measure it again" in swept[2]


@pytest.mark.usefixtures("finished")
def test_a_newer_store_is_refused_with_an_instruction(refuse, root, small):
    plan = json.loads((root / "plan.json").read_text())
    (root / "plan.json").write_text(json.dumps(plan | {"schema_version": 7}))
    expected = f"schema 7, this reads up to {SCHEMA_VERSION}): upgrade"
    for words in (
        ("sweep", *small, "--study=s"),
        ("sweep", "--study", "s"),
        ("status", "s"),
        ("report", "s"),
    ):
        assert f"newer version ({expected}" in refuse(*words)


@pytest.mark.usefixtures("finished")
def test_a_study_that_another_harness_measures_is_refused(refuse, root, small):
    with lock.lock_study(root):
        err = refuse("sweep", *overridden(small, "--repeats=9", "--study=s"))

    assert re.search(rf"error: study .* is in use by process {os.getpid()}", err)


@pytest.mark.parametrize(
    ("behavior", "expected", "num_failed"),
    [
        ("tf_mirrored:2:build_fail", exit_codes.SOME_TRIALS_FAILED, 1),
        ("*:*:build_fail", exit_codes.NOTHING_MEASURED, 4),
    ],
)
def test_failures_are_finished_and_run_again_when_asked(
    harness, overrides, monkeypatch, tmp_path, small, behavior, expected, num_failed
):
    """Zero trials measured is never success; status lists what failed."""
    count = tmp_path / "count"
    monkeypatch.setenv("FAKE_COUNT_FILE", str(count))
    monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
    args = overridden(small, "--study=s", "--repeats=1", "--no-match")
    code, _, err = harness("sweep", *args, overrides=overrides)
    again, _, _ = harness("sweep", "--study", "s", overrides=overrides)
    _, out, _ = harness("status", "s")

    assert expected == code == again
    assert 4 == len(count.read_text().split())
    assert "failed, took" in err
    assert "[4/4]" in err
    text = f"{num_failed} of 4 trials are not ok: see 'status runs/s'; --retry"
    assert text in err
    assert "failed in build: the reducer is out of paper" in out
    monkeypatch.delenv("FAKE_BEHAVIOR")
    retry = ("sweep", "--study", "s", "--retry=failed")
    assert exit_codes.OK == harness(*retry, overrides=overrides)[0]
    assert 4 + num_failed == len(count.read_text().split())


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
    monkeypatch.setattr("reports.page.sections.learning.MOST_FIGURES", 1)
    drawn = [of for of in build.SECTIONS if of.SLUG in ("learning", "quality")]
    monkeypatch.setattr(build, "SECTIONS", drawn)
    for path in store.root.rglob("result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["curve"]):
            part["quality"] += [{**part["quality"][0], "name": "another"}]
        path.write_text(json.dumps(result))
    code, _, err = harness("report", "s")

    assert exit_codes.OK == code, err
    page = store.report_path.read_text()
    assert 2 == len(re.findall(r"more figures? with other names omitted", page))


@pytest.mark.parametrize(
    "order",
    [
        ("--order=sequential", "--repeats=1"),
        ("--order=interleaved", "--repeats=2", "--rounds=3", "--budget=none"),
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
