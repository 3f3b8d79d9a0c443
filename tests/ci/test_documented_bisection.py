"""The recipe of ``docs/ci.md`` for ``git bisect run`` with a gate as its test."""

import os
import re
import shlex
import subprocess

import pytest
from pipelines import ROOT

from harness.cli.main import cli

(RECIPE,) = re.findall(
    r"```sh\n(git bisect start .*?)^```$",
    (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
GATE = RECIPE[RECIPE.index("replicator-harness") : RECIPE.index("  case")]


def git(folder, *words):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    done = subprocess.run(
        ("git", *who, *words), cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def bisect(folder, codes):
    """Runs the recipe; gates exit with the code that their commit holds."""
    git(folder, "init", "--quiet", "--initial-branch=main")
    for index, code in enumerate(codes):
        (folder / "code").write_text(f"{code} {index}")
        git(folder, "add", "code")
        git(folder, "commit", "--quiet", "-m", f"c{index}")
        git(folder, "tag", "v1.0" if index == 0 else f"c{index}")
    tool = folder / ".git" / "replicator-harness"
    tool.write_text('#!/bin/sh\nread code rest < code\nexit "$code"\n')
    tool.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", RECIPE],
        cwd=folder,
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    tags = {git(folder, "rev-parse", f"c{i}"): f"c{i}" for i in range(1, len(codes))}
    return done.returncode, done.stdout + done.stderr, tags


@pytest.mark.parametrize("first", [1, 5])
def test_the_first_commit_whose_gate_regresses_is_named(tmp_path, first):
    _, out, tags = bisect(tmp_path, [0] * first + [1] * (6 - first))
    (found,) = re.findall(r"^(\w+) is the first bad commit", out, re.MULTILINE)

    assert f"c{first}" == tags[found], out


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 130])
def test_a_gate_without_a_verdict_decides_nothing(tmp_path, code):
    """Inconclusive, failed and unfit: git names a range.

    A command that cannot be carried out would be as wrong of each commit.
    """
    status, out, tags = bisect(tmp_path, [0, 0, code, 1, 1])

    assert status
    if 3 <= code <= 6:
        assert "only 'skip'ped commits left" in out
        named = {name for commit, name in tags.items() if f"\n{commit}\n" in out}
        assert {"c2", "c3"} == named
    else:
        assert "first bad commit" not in out


def test_its_gate_has_options_that_exist():
    _, subcommand, *options = shlex.split(GATE.replace("\\\n", " "))

    assert cli.commands[subcommand].make_context(subcommand, options).params
