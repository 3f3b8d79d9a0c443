"""Sweeps and studies by the command line: tables, reports, interrupts, exit codes."""

import json
import re
import signal
import time

import pytest
from command_words import overridden
from ended import ended_ids
from hung import until

from harness.cli import exit_codes
from results.records.models import SCHEMA_VERSION
from results.store.study_store import Store

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_trials")]


@pytest.mark.usefixtures("with_pages")
def test_a_sweep_ends_with_table_and_report(
    harness, overrides, tmp_path, small, monkeypatch
):
    args = ("sweep", *overridden(small, "--repeats=1", "--no-match", "--study=s"))
    code, out, err = harness(*args, overrides=overrides)
    report = tmp_path / "runs" / "s" / "report" / "index.html"
    page = report.read_text()
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: "made anew")
    again = harness(*args, "--json", overrides=overrides)

    assert exit_codes.OK == code
    assert "images/s" in out
    assert "[4/4]   ok," in err
    assert "\x1b[" not in out + err
    assert "report: runs/s/report/index.html" in err
    assert "<html" in page
    assert exit_codes.OK == again[0]
    assert json.loads(again[1])["coverage"]["ok"] == 4
    assert "4 trials, 4 already finished" in again[2]
    assert "made anew" == report.read_text()


def test_another_setting_in_the_same_study_is_refused(finished, refuse, small):
    err = refuse("sweep", *small, "--study=s", "--seed=1")

    assert re.search(r"study 's' was made with seed 0, this sweep has 1", err)


def test_a_corrupt_record_is_named_and_the_rest_is_readable(
    finished, harness, tmp_path, small
):
    store = Store.open(tmp_path / "runs" / "s")
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


@pytest.mark.parametrize("verb", ["sweep", "sweep --study", "status", "report"])
def test_a_newer_store_is_refused_with_an_instruction(
    finished, refuse, tmp_path, verb, small
):
    """An old program must not misread a new record."""
    path = tmp_path / "runs" / "s" / "plan.json"
    plan = json.loads(path.read_text())
    path.write_text(json.dumps(plan | {"schema_version": 7}))
    args = (*small, "--study=s") if verb == "sweep" else ("s",)
    err = refuse(*verb.split(), *args)

    assert re.search(
        rf"newer version \(schema 7, this reads up to {SCHEMA_VERSION}\): upgrade", err
    )


def test_report_goes_where_it_is_asked_to(finished, harness, tmp_path, monkeypatch):
    """The path is data, so it is on stdout."""
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: "a page\n")
    code, out, _ = harness("report", "s", "-o", "elsewhere/r.html")

    assert (exit_codes.OK, "elsewhere/r.html\n") == (code, out)
    assert "a page\n" == (tmp_path / "elsewhere" / "r.html").read_text()


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        ("tf_mirrored:2:build_fail", exit_codes.SOME_TRIALS_FAILED),
        ("*:*:build_fail", exit_codes.NOTHING_MEASURED),
    ],
)
def test_failures_have_exit_codes_of_their_own(
    harness, overrides, monkeypatch, behavior, expected, small
):
    """Zero trials measured is never success; status lists what failed."""
    monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
    args = overridden(small, "--study=s", "--repeats=1", "--no-match")
    code, _, err = harness("sweep", *args, overrides=overrides)
    again, _, _ = harness("sweep", "--study", "s", overrides=overrides)
    _, out, _ = harness("status", "s")

    assert expected == code == again
    assert re.search(r"[14] of 4 trials are not ok: see 'status runs/s'; --retry", err)
    assert "failed in build: the reducer is out of paper" in out


def test_plan_estimates_from_earlier_trials(finished, harness, small):
    _, out, _ = harness("sweep", "--dry-run", *small, "--study=t", "--seed=5")

    assert "8 to run" in out
    assert "from earlier trials like these" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_exits_130_and_says_how_to_resume(
    start_harness, harness, number, tmp_path, small
):
    """Ctrl-C and a polite kill are the same; the page shows the kept trials."""
    process = start_harness(
        *("sweep", *small, "--backends=in_graph", "--no-match", "--study=s"),
        FAKE_BEHAVIOR="in_graph:2:hang",
    )
    rank = tmp_path / "runs" / "s" / "trials"
    until(lambda: len(list(rank.glob("*/rank_0.jsonl"))) == 2)
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    store = Store.open(tmp_path / "runs" / "s")

    assert exit_codes.INTERRUPTED == process.returncode
    assert "resume with: python -m harness sweep --study runs/s" in err
    assert len(ended_ids(store)) == 1
    assert exit_codes.OK == harness("verify", "s")[0]
    assert store.report_path.exists()


def test_two_harnesses_on_one_study_the_second_is_refused(
    start_harness, harness, tmp_path, small
):
    gate = tmp_path / "gate"
    only_one = ("--backends=in_graph", "--replicas=1", "--repeats=1", "--no-match")
    args = ("sweep", *overridden(small, *only_one, "--study=s"))
    first = start_harness(*args, FAKE_GATE_FILE=gate)
    until((tmp_path / "runs" / "s" / ".lock-holder").exists)
    second, _, err = harness(*args)
    gate.touch()
    first.communicate(timeout=120)

    assert exit_codes.USAGE == second
    assert re.search(rf"error: study .* is in use by process {first.pid}", err)
    assert exit_codes.OK == first.returncode
