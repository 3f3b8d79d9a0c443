"""Code that is edited while it is measured is noticed; what measures nothing is not."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.command import identity
from harness.errors import PlanError
from harness.sources import code_digest, plugin_code
from harness.sources.code_watch import CodeWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], CodeWatch]:
    """Returns a function that watches a program in a repository: the current folder."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    (root / "train.py").write_text("x = 1\n")
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    for words in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("commit", "--quiet", "-m", "one"),
    ):
        subprocess.run(["git", *who, *words], check=True)
    (root / "own.log").write_text("1\n")
    command = f"{sys.executable} train.py {{replicas}}"

    def watch() -> CodeWatch:
        parts = identity.of_program(command, root, left_out=[root / "runs"])
        record = SimpleNamespace(command=command)
        plan: Any = SimpleNamespace(
            program_code={"": parts},
            trials=[SimpleNamespace(spec=SimpleNamespace(program=record))],
        )
        return CodeWatch(plan, folders={}, left_out=[root / "runs"])

    return watch


def test_a_program_that_is_edited_has_changed(program: Any, tmp_path: Path) -> None:
    """And stays so when the edit is undone: trials have run meanwhile."""
    watch, file = program(), tmp_path / "repository" / "train.py"
    assert "" == watch.changed()
    file.write_text("x = 2\n")

    assert "uncommitted train.py 'none' / '" in watch.changed()
    file.write_text("x = 1\n")
    assert "uncommitted train.py" in watch.changed()
    assert "" == program().changed()


@pytest.mark.parametrize(
    ("name", "what"),
    [("own.log", "uncommitted own.log"), ("uv.lock", "uv.lock 'none' / '")],
)
def test_other_files_of_a_program_that_have_changed(
    program: Any, tmp_path: Path, name: str, what: str
) -> None:
    """One that git does not know, and a new lock file."""
    watch = program()
    (tmp_path / "repository" / name).write_text("2\n")

    assert what in watch.changed()


def test_what_a_program_writes_anew_is_no_change(program: Any, tmp_path: Path) -> None:
    """A new log or picture beside it, and the studies."""
    watch = program()
    (tmp_path / "repository" / "runs").mkdir()
    for name in ("loss.csv", "runs/plan.json"):
        (tmp_path / "repository" / name).write_text("1\n")

    assert "" == watch.changed()


def test_an_interpreter_that_does_not_answer_is_no_change(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a busy machine, say: it is asked again, and one line says what to do."""
    watch = program()
    monkeypatch.setattr(identity, "INTERPRETER_SEC", 1e-6)
    with pytest.raises(PlanError, match="does not say its version any more, so the"):
        watch.changed()
    monkeypatch.undo()


def test_copies_are_not_looked_at(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate runs worktrees of its own, whatever is edited meanwhile."""
    watch = program()
    plan = watch._plan
    (tmp_path / "repository" / "train.py").write_text("x = 2\n")

    assert "" == CodeWatch(plan, folders={"": tmp_path}, left_out=[]).changed()


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tree of our packages, whose digest is the first line of one file."""
    file = tmp_path / "harness" / "run.py"
    file.parent.mkdir()
    file.write_text("one\n")
    num_digests = []

    def of_sources(workload: str, backend: str, sources: code_digest.Sources) -> str:
        assert ("w", "b") == (workload, backend)
        num_digests.append(1)
        return sources.paths["harness.run"].read_text().split()[0]

    monkeypatch.setattr(code_digest, "of_sources", of_sources)
    monkeypatch.setattr(plugin_code, "difference", lambda _: "")
    spec = SimpleNamespace(workload="w", backend="b", revision="", code_digest="one")
    other = SimpleNamespace(workload="w", backend="b", revision="1a", code_digest="1a")
    plan: Any = SimpleNamespace(
        program_code={}, trials=[SimpleNamespace(spec=of) for of in (spec, other)]
    )
    watch = CodeWatch(plan, folders={}, left_out=[], root=tmp_path)
    return SimpleNamespace(watch=watch, file=file, num_digests=num_digests)


def test_our_own_code_is_digested_when_a_file_has_changed(ours: Any) -> None:
    """An edit that measures nothing is read once, and is no change."""
    assert ("", []) == (ours.watch.changed(), ours.num_digests)
    ours.file.write_text("one # a comment\n")
    assert ("", "") == (ours.watch.changed(), ours.watch.changed())
    assert [1] == ours.num_digests
    ours.file.write_text("two\n")

    assert "code of backend b (digest 'one' / 'two')" == ours.watch.changed()


def test_our_own_code_that_cannot_be_looked_at(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, with what to do."""

    def fail(path: object) -> None:
        raise OSError(5, os.strerror(5), str(path))

    monkeypatch.setattr("pathlib.Path.stat", fail)
    with pytest.raises(PlanError, match=r"cannot look at '.*harness'.*: Input/output"):
        ours.watch.changed()


def test_a_plugin_that_has_changed(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of it is named."""
    found = "workload mine: files '1' / now '2'"
    monkeypatch.setattr(plugin_code, "difference", lambda _: found)

    assert found == ours.watch.changed()
