"""Sweeps and studies by the command line: tables, reports, failures, exit codes."""

import json
import os
import re

import pytest
from command_words import overridden

from harness.cli import exit_codes
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
    build = "reports.page.build.build_report"
    monkeypatch.setattr(build, lambda *_: "<html>a page</html>\n")
    args = ("sweep", *overridden(small, "--repeats=1", "--no-match", "--study=s"))
    code, out, err = harness(*args, overrides=overrides)
    page = (root / "report" / "index.html").read_text()

    assert exit_codes.OK == code
    assert "images/s" in out
    assert "[4/4]   ok," in err
    assert "\x1b[" not in out + err
    assert "report: runs/s/report/index.html" in err
    assert "<html>a page</html>\n" == page

    monkeypatch.setattr(build, lambda *_: "made anew")
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
