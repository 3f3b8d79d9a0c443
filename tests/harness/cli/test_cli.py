"""The command line: what it prints, where, with which exit code; completion."""

import contextlib
import datetime as dt
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from command_lines import overridden

from harness import ExitCode, command_line, main
from results import SCHEMA_VERSION, Store, lock_study

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_trials")]


def test_list_prints_names_as_text_and_json(succeed):
    everything = succeed("list")
    for what in ("workloads", "backends", "presets"):
        (rows,) = json.loads(succeed("list", what, "--json")).values()
        text = succeed("list", what)

        assert rows
        assert all(row["name"] in text and row["name"] in everything for row in rows)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("broken inside"),
        # Of a missing file of ours no path of the user's is blamed.
        FileNotFoundError(errno.ENOENT, "No such file: broken inside", "x"),
        OSError("broken inside"),
    ],
)
def test_a_fault_of_ours_has_an_exit_code_of_its_own(monkeypatch, capsys, error):
    """Code 1 means a regression, so a crash must not use it."""

    def crash(*_, **__):
        raise error

    monkeypatch.setattr(command_line, "main", crash)
    code = main(["list"])
    message = capsys.readouterr().err

    assert ExitCode.INTERNAL_FAULT == code
    assert "broken inside" in message
    assert (
        "error: internal error; finished trials are kept, "
        "run the same command to resume" in message
    )


def test_without_a_verb_the_help_is_shown(harness):
    """Exit code 2: 0 would tell a script that something was done."""
    code, out, err = harness()

    assert (ExitCode.USAGE, "") == (code, err)
    assert out.startswith("Usage: python -m harness [OPTIONS] COMMAND")
    assert all(
        re.search(rf"^  {subcommand} ", out, re.MULTILINE)
        for subcommand in command_line.commands
    )
    assert (ExitCode.OK, out, "") == harness("--help")
    for subcommand, command in command_line.commands.items():
        assert command.help
        assert ExitCode.OK == harness(subcommand, "--help")[0]


def test_the_version_is_that_of_the_package(harness, monkeypatch):
    code, out, err = harness("--version")

    assert (ExitCode.OK, "") == (code, err)
    assert re.fullmatch(r"replicator-harness \d+\.\d+\.\d+\S*\n", out)
    monkeypatch.setattr(sys, "path", [])  # where distributions are found
    out = harness("--version")[1]
    reason = "unknown: the package is not installed; run 'make setup'"
    assert f"replicator-harness {reason}\n" == out


@pytest.fixture
def two_studies(tmp_path, synthetic):
    shape = {
        "modes": (synthetic.WEAK,),
        "repeats": 1,
        "num_measured_steps": 2,
        "is_evaluated": False,
    }
    failed = {("in_graph", synthetic.WEAK, 2, 0): synthetic.TrialStatus.FAILED}
    for name, statuses in (("whole", {}), ("part", failed)):
        made = synthetic.Shape(name=name, statuses=statuses, **shape)
        synthetic.make_store(tmp_path / "runs" / name, made)
    (tmp_path / "runs" / "no-study").mkdir()


@pytest.mark.usefixtures("two_studies")
def test_studies_are_listed_with_their_progress(harness):
    code, out, err = harness("list", "studies")
    rows = json.loads(harness("list", "studies", "--json")[1])["studies"]

    assert (ExitCode.OK, "") == (code, err)
    assert [
        "part   2025-01-01 00:00  3/4 ok  resnet50 laptop, x1,2, in_graph,tf_mirrored",
        "whole  2025-01-01 00:00  4/4 ok  resnet50 laptop, x1,2, in_graph,tf_mirrored",
    ] == out.splitlines()
    assert [("part", 3, 4), ("whole", 4, 4)] == [
        (row["name"], row["num_ok"], row["num_trials"]) for row in rows
    ]


def complete(arguments, incomplete):
    shell = BashComplete(command_line, {}, "replicator-harness", "")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.mark.usefixtures("two_studies")
def test_a_shell_completes_verbs_options_and_studies(harness, monkeypatch, tmp_path):
    del harness  # which changes to the directory
    (tmp_path / "runs").rename(tmp_path / "others")

    assert ["report"] == complete([], "rep")
    assert "--format" in complete(["report"], "--f")
    assert "mlperf" in complete(["report", "--format"], "")
    assert [] == complete(["report"], "")
    assert ["part", "whole"] == complete(["report", "--runs-dir", "others"], "")
    assert ["whole"] == complete(["report", "--runs-dir", "others", "part"], "w")


@pytest.fixture
def interleaved(tmp_path, synthetic):
    """An interleaved study of which one trial has begun: it has taken two blocks and
    half a line.
    """
    shape = synthetic.Shape(num_rounds=4, repeats=2, backends=("in_graph",))
    store = synthetic.make_store(tmp_path / "s", shape)
    (begun_in(store) / "status.json").unlink()
    lines = "".join(json.dumps({"round_index": r}) + "\n" for r in (0, 1))
    (begun_in(store) / "blocks.jsonl").write_text(f'{lines}{{"rou')
    return store


def begun_in(store):
    return store.trial_dir(store.read_plan().trials[-1].trial_id)


@pytest.fixture
def status(succeed, interleaved):
    root = str(interleaved.root)
    return lambda *more: succeed("status", root, *more).rstrip()


def test_what_runs_now_or_waits_is_not_missing(interleaved, status):
    begun = begun_in(interleaved) / "blocks.jsonl"
    with lock_study(interleaved.root):
        texts = [status()]
        begun.write_text('{"round_index": 23, "is_sustained": true}\n')
        texts.append(status())
        begun.unlink()
        texts.append(status())
        for trial in interleaved.read_plan().trials:
            if trial.spec.repetition_index == 1:
                shutil.rmtree(interleaved.trial_dir(trial.trial_id), ignore_errors=True)
        waiting = status()

    for text, place in zip(
        texts, ("round 2", "sustained stretches", "starting"), strict=True
    ):
        assert "1 running" in text
        assert "missing" not in text
        assert text.endswith(f"; run 2 of 2, {place}")
    assert re.search(r"\d+ waiting", waiting)
    assert "missing" not in waiting


def test_watching_prints_what_changes_and_ends_with_the_sweep(
    interleaved, status, refuse, monkeypatch
):
    begun = begun_in(interleaved) / "blocks.jsonl"
    held = contextlib.ExitStack()
    held.enter_context(lock_study(interleaved.root))
    steps = iter(
        (lambda: None, lambda: begun.write_text('{"round_index": 2}\n'), held.close)
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(steps)())
    printed = status("--watch").splitlines()
    lines = [line for line in printed if not line.startswith("  ")]
    rates = [line for line in printed if line.startswith("  ")]

    # Over the runs that have ended; here, one.
    assert re.fullmatch(
        r"  in_graph, 1 replica x \d+: [\d.]+ \[[\d.]+,\s[\d.]+\] \S+/s, 1 run",
        rates[0],
    )
    assert [
        ("running", "run 2 of 2, round 2"),
        ("running", "run 2 of 2, round 3"),
        ("missing", ""),
    ] == [
        ("running" if "1 running" in line else "missing", line.partition("; ")[2])
        for line in lines
    ]
    err = refuse("status", str(interleaved.root), "--watch", "--json")
    assert "--watch prints lines for a reader, and --json one object" in err


def test_what_a_killed_sweep_left_is_missing(interleaved, status):
    """Its process is gone, although the file that names it is still there."""
    heartbeat = interleaved.root / ".lock-heartbeat"
    with lock_study(interleaved.root):
        owner = heartbeat.read_text()
    heartbeat.write_text(owner.replace(f" {os.getpid()} ", " 4194304999 "))

    assert "1 missing" in status()


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def users_folder(tmp_path):
    for name in ("click", "replicator", "reports", "results", "rich", "workloads"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('user: {name}')\n")
    return tmp_path


def run_module(users_folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=users_folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_modules_of_a_user_do_not_shadow_the_packages(users_folder):
    words = ("sweep", "--dry-run", "--workload=resnet50", "--preset=smoke")
    done = run_module(users_folder, "harness", *words, "--no-match")

    assert 0 == done.returncode, done.stderr
    assert "user: " not in done.stderr


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs" / "s"


@pytest.mark.usefixtures("with_pages")
def test_a_sweep_ends_with_table_and_report(harness, overrides, root, small, show_page):
    show_page("<html>a page</html>\n")
    args = ("sweep", *overridden(small, "--repeats=1", "--no-match", "--study=s"))
    code, out, err = harness(*args, overrides=overrides)
    page = (root / "report" / "index.html").read_text()

    assert ExitCode.OK == code
    assert "images/s" in out
    assert "[4/4]   ok," in err
    assert "\x1b[" not in out + err
    assert "report: runs/s/report/index.html" in err
    assert "<html>a page</html>\n" == page

    show_page("made anew")
    code, out, err = harness(*args, "--json", overrides=overrides)
    assert ExitCode.OK == code
    assert 4 == json.loads(out)["coverage"]["ok"]
    assert "4 trials, 4 already finished" in err
    assert "made anew" == (root / "report" / "index.html").read_text()
    code, out, _ = harness("report", "s", "-o", "elsewhere/r.html")
    assert (ExitCode.OK, "elsewhere/r.html\n") == (code, out)
    assert "made anew" == (root.parents[1] / "elsewhere" / "r.html").read_text()


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
    with lock_study(root):
        err = refuse("sweep", *overridden(small, "--repeats=9", "--study=s"))

    assert re.search(rf"error: study .* is in use by process {os.getpid()}", err)


@pytest.mark.parametrize(
    ("behavior", "expected", "num_failed"),
    [
        ("tf_mirrored:2:build_fail", ExitCode.SOME_TRIALS_FAILED, 1),
        ("*:*:build_fail", ExitCode.NOTHING_MEASURED, 4),
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
    assert ExitCode.OK == harness(*retry, overrides=overrides)[0]
    assert 4 + num_failed == len(count.read_text().split())


@pytest.mark.parametrize(
    "order",
    [
        ("--order=sequential", "--repeats=1"),
        ("--order=interleaved", "--repeats=2", "--set=rounds=3", "--budget=none"),
    ],
    ids=["sequential", "relay"],
)
def test_a_clock_that_is_set_back_changes_no_figure(
    order, succeed, overrides, monkeypatch, tmp_path
):
    hours = itertools.count()
    start = dt.datetime(2026, 3, 29, 3, tzinfo=dt.timezone.utc)

    class Backwards(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return (start - dt.timedelta(hours=next(hours))).astimezone(tz)

    monkeypatch.setattr(dt, "datetime", Backwards)
    options = ("--replicas=1,2", "--mode=weak", "--no-match", *order, "--study=s")
    request = ("--workload=resnet50", "--preset=smoke", "--backends=in_graph")
    succeed("sweep", *request, *options, overrides=overrides)
    succeed("verify", "s")
    trials = Store.open(tmp_path / "runs" / "s").trials()
    statuses = [trial.status for trial in trials if trial.status is not None]

    assert 2 <= len(statuses)
    assert all(status.ended_at < status.started_at for status in statuses)
    assert all(0.0 < status.duration_sec < 600.0 for status in statuses)
