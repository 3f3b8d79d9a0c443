"""What ``init`` writes into a repository, and from what it does not."""

from __future__ import annotations

import shlex
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.cli import exit_codes, study_file
from harness.cli.verb import Verb
from harness.cli.verbs import init_verb
from harness.errors import PlanError
from harness.planning.request import SweepRequest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import time
for i in range(20):
    print(f"rate: {100 + i % 3}", flush=True)
    time.sleep(0.002)
"""
FILES = [".github/workflows/scaling.yml", "SCALING.md", "study.toml"]


def test_a_program_that_was_measured_gets_a_gate(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study file has its settings, the workflow a command that parses."""
    (tmp_path / "p.py").write_text(PROGRAM, encoding="utf-8")
    command = f"{sys.executable} p.py"
    words = ["--command", command, "--metric", "throughput=rate: ([0-9.]+)"]
    words += ["--replicas", "1", "--mode", "weak", "--per-replica-batch-size", "1"]
    words = ["sweep", *words, "--repeats", "1", "--study", "s"]
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    code, _, err = harness(*words)
    assert exit_codes.OK == code, err

    code, _, err = harness("init", "s", "-o", "repository")
    assert exit_codes.OK == code, err
    root = tmp_path / "repository"
    assert sorted(FILES) == sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
    )
    assert "1 of 1 trials were ok" in (root / "SCALING.md").read_text()
    settings = study_file.parse(root / "study.toml")
    assert (command, 1, 1) == (
        settings["command"],
        settings["replicas"],
        settings["per-replica-batch-size"],
    )
    assert "study" not in settings
    job = yaml.safe_load((root / FILES[0]).read_text())["jobs"]["scaling"]
    _, install, gate = job["steps"]
    # Thousands of files in the checkout would be uncommitted ones of the program.
    places = [word for word in shlex.split(install["run"]) if "/" in word]
    assert {"$RUNNER_TEMP"} == {place.partition("/")[0] for place in places}
    script = gate["run"].splitlines()[1].partition(" || ")[0]
    words = shlex.split(script)[3:]
    assert ["gate", "--command", command] == words[:3]
    assert ["--baseline", "$BASE"] == words[-2:]
    verb = next(v for v in _verbs() if v.name == "gate")
    request = verb.make_request(verb.make_context("gate", words[1:]))
    assert (1,) == tuple(request.replicas)

    again = tmp_path / "again"
    again.mkdir()
    (again / "requirements.txt").touch()
    harness("init", "s", "-o", "again")
    job = yaml.safe_load((again / FILES[0]).read_text())["jobs"]["scaling"]
    assert 'bin/pip" install -r requirements.txt\n' in job["steps"][1]["run"]
    assert "$GITHUB_PATH" in job["steps"][1]["run"]


def _verbs() -> list[Verb]:
    from harness.cli.main import VERBS

    return [verb for verb in VERBS if isinstance(verb, Verb)]


def test_the_gate_of_a_workflow_has_the_options_of_the_study() -> None:
    """Also those that are repeated, or say no."""
    options = ("--command=p {replicas}", "--metric=throughput=x ([0-9.]+)")
    counts = ("a=sent ([0-9]+)", "b=got, ([0-9]+)")
    options += ("--replicas=1,2", "--mode=weak,strong", "--no-match", "--repeats=2")
    options += tuple(word for text in counts for word in ("--count", text))
    plan: Any = types.SimpleNamespace(
        study="s", command=("python", "-m", "harness", "sweep", *options)
    )

    words = list(init_verb._gate_words(init_verb._given(plan)))
    verb = next(v for v in _verbs() if v.name == "gate")
    request = verb.make_request(verb.make_context("gate", words[1:]))
    assert (counts, False, None) == (
        tuple(request.counts),
        request.is_matched,
        request.repeats,
    )


def test_a_workload_is_repeated(tmp_path: Path) -> None:
    """The study file is read again, to the same settings."""
    options = ("--workload=resnet50", "--option", "jit=compute", "--replicas=1..2")
    plan: Any = types.SimpleNamespace(
        study="s", command=("python", "-m", "harness", "sweep", *options)
    )
    path = tmp_path / "study.toml"
    path.write_text(init_verb._toml(init_verb._given(plan)), encoding="utf-8")

    assert {
        "workload": "resnet50",
        "replicas": "1..2",
        "options": ("jit=compute",),
    } == study_file.read(path, SweepRequest)


def test_nothing_is_replaced(harness: Any, finished: None, tmp_path: Path) -> None:
    """And nothing else is written then."""
    (tmp_path / "SCALING.md").write_text("mine", encoding="utf-8")

    code, _, err = harness("init", "s")
    assert exit_codes.USAGE == code
    assert "'SCALING.md' is in " in err
    assert "init replaces nothing; move it away, or name another folder with -o" in err
    assert not (tmp_path / "study.toml").exists()
    assert "mine" == (tmp_path / "SCALING.md").read_text()


def test_a_study_without_an_ok_trial_is_no_template(
    harness: Any, finished: None, tmp_path: Path
) -> None:
    """Its command is not known to work."""
    for path in (tmp_path / "runs" / "s" / "trials").glob("*/result.json"):
        path.unlink()

    code, _, err = harness("init", "s")
    assert exit_codes.USAGE == code
    assert "study 's' has no ok trial, so its command is not known to work" in err
    assert not (tmp_path / "study.toml").exists()


def test_a_gate_is_no_template() -> None:
    """A study file is of a sweep."""
    plan: Any = types.SimpleNamespace(study="s", command=("p", "-m", "h", "gate"))

    with pytest.raises(PlanError, match="made by 'p -m h gate', and a study file is"):
        init_verb._given(plan)
