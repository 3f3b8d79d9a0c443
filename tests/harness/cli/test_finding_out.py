"""What helps who does not know: help, version, lists of studies, completion."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

import harness.cli.main as main_module
from harness.cli import exit_codes

VERBS = tuple(main_module.cli.commands)


def test_without_a_verb_the_help_is_shown(harness):
    """Exit code 2: 0 would tell a script that something was done."""
    code, out, err = harness()

    assert (exit_codes.USAGE, "") == (code, err)
    assert out.startswith("Usage: python -m harness [OPTIONS] COMMAND")
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in VERBS)


def test_help_that_was_asked_for_is_code_0(harness):
    code, out, _ = harness("--help")

    assert exit_codes.OK == code
    assert harness()[1] == out


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
    """Exit code 2, as of status and report."""
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
    """The script that bash evaluates calls the command that the package installs."""
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
