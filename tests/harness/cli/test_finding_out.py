"""What helps who does not know: help, version, studies and progress, completion."""

import contextlib
import json
import re
import shutil
import time

import pytest
from click.shell_completion import BashComplete

import harness.cli.main as main_module
from harness.cli import exit_codes
from results.store import lock

VERBS = tuple(main_module.cli.commands)


def test_without_a_verb_the_help_is_shown(harness):
    """Exit code 2: 0 would tell a script that something was done."""
    code, out, err = harness()

    assert (exit_codes.USAGE, "") == (code, err)
    assert out.startswith("Usage: python -m harness [OPTIONS] COMMAND")
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in VERBS)
    assert (exit_codes.OK, out, "") == harness("--help")


def test_the_version_is_that_of_the_package(harness, monkeypatch):
    """It is unknown where the sources were only copied."""
    code, out, err = harness("--version")

    assert (exit_codes.OK, "") == (code, err)
    assert re.fullmatch(r"replicator-harness \d+\.\d+\.\d+\S*\n", out)
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
    del harness  # which changes to the directory
    (tmp_path / "runs").rename(tmp_path / "others")

    assert ["report"] == complete([], "rep")
    assert "--format" in complete(["report"], "--f")
    assert "mlperf" in complete(["report", "--format"], "")
    assert [] == complete(["report"], "")
    assert ["part", "whole"] == complete(["report", "--runs-dir", "others"], "")
    assert ["whole"] == complete(["report", "--runs-dir", "others", "part"], "w")


def test_the_documented_line_makes_a_shell_complete(monkeypatch, capsys):
    monkeypatch.setenv(main_module.COMPLETION, "bash_source")
    with pytest.raises(SystemExit) as ended:
        main_module.main([])
    out = capsys.readouterr().out

    assert 0 == ended.value.code
    assert "replicator-harness" in out
    assert f"{main_module.COMPLETION}=bash_complete" in out
    assert "complete -o nosort -F" in out


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


@pytest.fixture
def status(harness, relay):
    def run(*more):
        code, out, err = harness("status", str(relay.root), *more)
        assert exit_codes.OK == code, err
        return out.rstrip()

    return run


def test_what_runs_now_or_waits_is_not_missing(relay, status):
    """It says where the relay is; of one that has just started, nothing is missing."""
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    with lock.lock_study(relay.root):
        texts = [status()]
        begun.write_text('{"round_index": 23, "is_sustained": true}\n')
        texts.append(status())
        begun.unlink()
        texts.append(status())
        for trial in relay.read_plan().trials:
            if trial.spec.repetition_index == 1:
                shutil.rmtree(relay.trial_dir(trial.trial_id), ignore_errors=True)
        waiting = status()

    for text, place in zip(
        texts, ("round 2", "sustained stretches", "starting"), strict=True
    ):
        assert "1 running" in text
        assert "missing" not in text
        assert text.endswith(f"; generation 2 of 2, {place}")
    assert re.search(r"\d+ waiting", waiting)
    assert "missing" not in waiting


def test_watching_prints_what_changes_and_ends_with_the_sweep(
    relay, status, refuse, monkeypatch
):
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    held = contextlib.ExitStack()
    held.enter_context(lock.lock_study(relay.root))
    steps = iter(
        (lambda: None, lambda: begun.write_text('{"round_index": 2}\n'), held.close)
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(steps)())
    lines = status("--watch").splitlines()

    assert [
        ("running", "generation 2 of 2, round 2"),
        ("running", "generation 2 of 2, round 3"),
        ("missing", ""),
    ] == [
        ("running" if "1 running" in line else "missing", line.partition("; ")[2])
        for line in lines
    ]
    err = refuse("status", str(relay.root), "--watch", "--json")
    assert "--watch prints lines for a reader, and --json one object" in err


def test_what_a_killed_sweep_left_is_missing(relay, status):
    """Its process is gone, although the file that names it is still there."""
    (relay.root / lock.HOLDER_NAME).write_text("4194304999\n")

    assert "1 missing" in status()
