"""What helps who does not know: help, version, studies and progress, completion."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import harness.cli.main as main_module
from harness.cli import exit_codes, main
from harness.cli.verbs import status_verb
from harness.errors import PlanError
from results.store import lock

VERBS = tuple(main_module.cli.commands)


def test_without_a_verb_the_help_is_shown(harness):
    """Exit code 2: 0 would tell a script that something was done."""
    code, out, err = harness()

    assert (exit_codes.USAGE, "") == (code, err)
    assert out.startswith("Usage: python -m harness [OPTIONS] COMMAND")
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in VERBS)
    assert (exit_codes.OK, out, "") == harness("--help")


def test_the_version_is_that_of_the_package(harness):
    code, out, err = harness("--version")

    assert (exit_codes.OK, "") == (code, err)
    assert re.fullmatch(r"replicator-harness \d+\.\d+\.\d+\S*\n", out)


def test_without_the_package_the_version_is_unknown(harness, monkeypatch):
    """As where the sources were only copied."""
    monkeypatch.setattr(main_module, "SCRIPT", "no-such-package")
    code, out, _ = harness("--version")

    assert exit_codes.OK == code
    assert out.startswith("no-such-package unknown: the package is not installed; run")


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

    assert (exit_codes.OK, "") == (code, err)
    assert [
        "part   2025-01-01 00:00  3/4 ok  resnet50 laptop, x1,2, in_graph,tf_mirrored",
        "whole  2025-01-01 00:00  4/4 ok  resnet50 laptop, x1,2, in_graph,tf_mirrored",
    ] == out.splitlines()
    assert [("part", 3, 4), ("whole", 4, 4)] == [
        (row["name"], row["num_ok"], row["num_trials"]) for row in rows
    ]


@pytest.mark.usefixtures("two_studies")
def test_an_unreadable_study_is_named_and_the_others_are_listed(harness, tmp_path):
    (tmp_path / "runs" / "part" / "plan.json").write_text("{")
    code, out, err = harness("list", "studies")

    assert exit_codes.USAGE == code
    assert out.startswith("whole  ")
    assert re.match(r"error: corrupt record '.*part/plan.json'", err)


def test_a_directory_without_studies_is_no_error(harness):
    code, out, err = harness("list", "studies")

    assert (exit_codes.OK, "", "no study in 'runs'\n") == (code, out, err)


def complete(arguments, incomplete):
    shell = BashComplete(main_module.cli, {}, main_module.SCRIPT, "")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.mark.usefixtures("two_studies")
def test_a_shell_completes_verbs_options_and_studies(harness, monkeypatch, tmp_path):
    """Names of studies come from the runs directory that the line names."""
    del harness  # which changes to the directory
    (tmp_path / "runs").rename(tmp_path / "others")

    assert ["report"] == complete([], "rep")
    assert "--format" in complete(["report"], "--f")
    assert "mlperf" in complete(["report", "--format"], "")
    assert [] == complete(["report"], "")
    assert ["part", "whole"] == complete(["report", "--runs-dir", "others"], "")
    assert ["whole"] == complete(["report", "--runs-dir", "others", "part"], "w")


@pytest.mark.processes
def test_the_documented_line_makes_a_shell_complete():
    environment = os.environ | {main_module.COMPLETION: "bash_source"}
    done = subprocess.run(
        [sys.executable, "-m", "harness"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "replicator-harness" in done.stdout
    assert f"{main_module.COMPLETION}=bash_complete" in done.stdout
    assert "complete -o nosort -F" in done.stdout


@pytest.fixture
def relay(tmp_path, synthetic):
    """A relay of which one trial has begun: it has taken two turns and half a line."""
    shape = synthetic.Shape(num_rounds=4, repeats=2, backends=("in_graph",))
    store = synthetic.make_store(tmp_path / "s", shape)
    begun = store.read_plan().trials[-1].trial_id
    (store.trial_dir(begun) / "status.json").unlink()
    lines = "".join(json.dumps({"round_index": r}) + "\n" for r in (0, 1))
    (store.trial_dir(begun) / "turns.jsonl").write_text(f'{lines}{{"rou')
    return store


def _status(store, *more):
    arguments = ["status", "s", "--runs-dir", str(store.root.parent), *more]
    done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, (done.output, done.exception)
    return done.output


def test_what_runs_now_is_not_missing(relay):
    with lock.lock_study(relay.root):
        text = _status(relay)

    assert "1 running" in text
    assert "missing" not in text
    assert text.rstrip().endswith("; generation 2 of 2, round 2")


def test_what_has_not_begun_waits(relay):
    """Nothing is missing of a sweep that has just started."""
    for trial in relay.read_plan().trials:
        if trial.spec.repetition_index == 1:
            shutil.rmtree(relay.trial_dir(trial.trial_id), ignore_errors=True)
    with lock.lock_study(relay.root):
        text = _status(relay)

    assert re.search(r"\d+ waiting", text)
    assert "missing" not in text


def test_a_relay_that_starts_or_ends_says_so(relay):
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    with lock.lock_study(relay.root):
        begun.write_text('{"round_index": 23, "is_sustained": true}\n')
        sustained = _status(relay)
        begun.unlink()
        starting = _status(relay)

    assert sustained.rstrip().endswith("; generation 2 of 2, sustained stretches")
    assert starting.rstrip().endswith("; generation 2 of 2, starting")


def test_watching_prints_what_changes_and_ends_with_the_sweep(relay, monkeypatch):
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    held = contextlib.ExitStack()
    held.enter_context(lock.lock_study(relay.root))
    steps = iter(
        (
            lambda: None,
            lambda: begun.write_text('{"round_index": 2}\n'),
            held.close,
        )
    )
    monkeypatch.setattr(status_verb.time, "sleep", lambda _: next(steps)())
    lines = _status(relay, "--watch").splitlines()

    assert [
        ("running", "generation 2 of 2, round 2"),
        ("running", "generation 2 of 2, round 3"),
        ("missing", ""),
    ] == [
        ("running" if "1 running" in line else "missing", line.partition("; ")[2])
        for line in lines
    ]


def test_watching_is_for_readers(relay):
    arguments = ["status", "s", "--runs-dir", str(relay.root.parent)]
    with pytest.raises(
        PlanError, match="--watch prints lines for a reader, and --json one object"
    ):
        CliRunner().invoke(
            main.cli, [*arguments, "--watch", "--json"], catch_exceptions=False
        )


def test_what_a_killed_sweep_left_is_missing(relay):
    """Its process is gone, although the file that names it is still there."""
    (relay.root / lock.HOLDER_NAME).write_text("4194304999\n")

    assert "1 missing" in _status(relay)
