"""Fixtures of judging: a repository whose revisions differ in the time of a step."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import command_lines
import driver
import fork_server
import pytest
from command_lines import commit, git, overridden
from fake_machine import QUIET

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.judging import revisions
from harness.machine import disturbance
from results import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[3]
WORKER = driver.command_of("gate_worker", Path(__file__).parent)
GATE = (*command_lines.GATE, "--set=rounds=3")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: Any) -> Path:
    """Returns a repository with a revision for everything that a gate can meet."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    for name in ("harness", "replicator", "results", "workloads"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / revisions.LOCK_NAME, folder)
    commit(folder, "same")
    counted = '{"graph_nodes": 100, "collective_bytes": 1000}'
    for name, file, content in (
        ("faster", "slowdown.txt", "0.909"),
        ("slower", "slowdown.txt", "1.1"),
        ("sent_less", "counted.json", counted),
        ("learned_more", "learned.txt", "1.25"),
        ("fails", "slowdown.txt", '"not a number"'),
    ):
        (folder / file).write_text(content)
        commit(folder, name)
        git(folder, "checkout", "--quiet", "same")
    records = folder / "results" / "records" / "models.py"
    for name, old, new in (
        ("older", "    revision: Name", "    tree: Name"),
        (
            "of_older_records",
            *(f"SCHEMA_VERSION = {SCHEMA_VERSION}", "SCHEMA_VERSION = 1"),
        ),
    ):
        records.write_text(records.read_text().replace(old, new))
        commit(folder, name)
    git(folder, "checkout", "--quiet", "same")
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="session")
def gate_overrides() -> dict[str, Any]:
    return {
        "worker_command": WORKER,
        "canary": lambda _core: 0.2,
        "discard_reason": lambda _load, _retraces: "",
    }


@pytest.fixture
def gate(
    harness: Any,
    repository: Path,
    temporary: Path,
    gate_overrides: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    writes_pages: bool,
) -> Any:
    del temporary
    monkeypatch.setattr(revisions, "SOURCE_ROOT", repository)
    if not writes_pages:
        monkeypatch.setattr("reports.page.build.write_report", lambda *_: None)

    def run(*arguments: str, of: tuple[str, ...] = GATE, **replaced: Any) -> Any:
        return harness(*overridden(of, *arguments), overrides=gate_overrides | replaced)

    with fork_server.installed(WORKER, fork_server.GATES):
        yield run


@pytest.fixture(scope="session")
def template_of_gates(
    repository: Path, tmp_path_factory: Any, gate_overrides: dict[str, Any]
) -> Path:
    """Returns a directory with a finished gate of two equal revisions, made once."""
    root: Path = tmp_path_factory.mktemp("gates")
    with (
        fork_server.installed(WORKER, fork_server.GATES),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(root)
        patch.setattr(revisions, "SOURCE_ROOT", repository)
        patch.setattr("reports.page.build.write_report", lambda *_: None)
        # Verifying applies the rule for turns to the load, which is that of a test.
        patch.setattr(disturbance, "between", lambda _before, _after: QUIET)
        arguments = (*GATE, "--baseline=same", "--study=stored")
        assert exit_codes.OK == cli.main(arguments, run_overrides=gate_overrides)
    return root


@pytest.fixture
def stored(template_of_gates: Path, tmp_path: Path) -> str:
    shutil.copytree(template_of_gates / "runs", tmp_path / "runs")
    return "stored"
