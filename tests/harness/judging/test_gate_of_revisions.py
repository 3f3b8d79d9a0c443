"""A gate measures two revisions in the same rounds; its exit code is the verdict."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes
from harness.judging import revisions
from results.records import Control
from results.store import Store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def worktrees(repository: Path) -> list[str]:
    """Returns what git knows of worktrees besides the repository itself."""
    listed = subprocess.run(
        ["git", "worktree", "list", "--porcelain"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    )
    return re.findall(r"^worktree (.*)", listed.stdout, re.MULTILINE)[1:]


def test_a_slowdown_of_ten_percent_is_a_regression(
    gate: Any, repository: Path, temporary: Path
) -> None:
    """Exit code 1; the worktree of the baseline is gone."""
    code, out, err = gate("--baseline=faster", "--format=json")

    data = json.loads(out)
    assert exit_codes.REGRESSION == code, err
    assert "regress" == data["verdict"]
    (case,) = data["cases"]
    assert pytest.approx(1.10, abs=0.02) == case["slowdown"]["value"]
    assert 3 == case["slowdown"]["n"]
    assert [] == worktrees(repository)
    assert [] == list(temporary.iterdir())


def test_two_equal_revisions_pass(gate: Any, tmp_path: Path) -> None:
    """Exit code 0; every case of the study exists twice, and one has a twin."""
    code, out, err = gate("--baseline=same", "--study=g")

    assert exit_codes.OK == code, err
    assert re.search(
        r"^PASS: throughput against revision same \(\w{12}\)", out, re.MULTILINE
    )
    trials = Store.open(tmp_path / "runs" / "g").read_plan().trials
    commit = revisions.find_commit("same")[: revisions.SHOWN_DIGITS]
    first = [trial.spec for trial in trials if trial.spec.repetition_index == 0]
    assert {("", Control.NONE), ("", Control.TWIN), (commit, Control.NONE)} == {
        (spec.revision, spec.control) for spec in first
    }


def test_the_same_command_resumes_and_other_verbs_refuse(
    gate: Any, harness: Any
) -> None:
    """Nothing is measured twice; 'resume' has not the sources of the revision."""
    first = gate("--baseline=slower", "--study=g")
    second = gate("--baseline=slower", "--study=g")
    code, _, err = harness("resume", "g")

    assert exit_codes.OK == first[0] == second[0]
    assert first[1] == second[1]
    assert "IMPROVE" in second[1]
    assert exit_codes.USAGE == code
    assert re.search(r"compares this tree with revision '\w+'.* repeat the gate", err)


def test_a_baseline_whose_trials_fail_is_no_verdict(gate: Any) -> None:
    """Exit code 4: what could not be measured does not pass."""
    code, out, _ = gate("--baseline=fails", "--repeats=2")

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert re.search(
        r"failed: in_graph x1 of \w+, repetition 0: failed: could not", out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"a gate needs a baseline: give --baseline"),
        (("--baseline=",), r"--baseline is empty"),
        (("--baseline=nothing",), r"'nothing' is neither a named baseline, nor"),
        (("--baseline=--help",), r"'--help' is neither a named baseline, nor"),
        (("--baseline=broken",), r"revision 'broken' cannot be installed: .*require"),
        (("--baseline=older",), r"revision 'older' cannot run the trials of this tree"),
        (("--baseline=same", "--repeats=1"), r"--repeats 1 gives no verdict"),
        (("--baseline=same", "--metric=joy"), r"unknown metric 'joy'; allowed are thr"),
        (("--baseline=same", "--metric=top_1"), r"'top_1' is a figure of quality runs"),
        (("--baseline=same", "--delta=0%"), r"--delta: '0%' is not a percentage"),
        (("--baseline=same", "--alpha=50%"), r"alpha is 0.5, must be .* less than 0.5"),
    ],
)
def test_a_gate_that_cannot_be_run_is_one_line(
    gate: Any,
    written: Any,
    repository: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    """Exit code 2; nothing is written, and nothing is left behind."""
    code, out, err = gate(*arguments)

    assert exit_codes.USAGE == code
    assert re.search(f"^error: .*{message}", err, re.MULTILINE), err
    assert not out
    assert ["temporary"] == written()
    assert [] == worktrees(repository)
