"""Command lines: their words, what they print, and the repositories they run in."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from harness import command_line
from harness.launch import launchers
from replicator.catalog import BACKENDS
from reports import FORMATS, render_text
from results import plugins
from workloads import WORKLOADS


def overridden(words, *more):
    """Returns words and more, without ``--name=value`` that more gives anew."""
    repeatable = {"", "--option", "--count", "--vary", "--write"}
    given = {_name_of(word) for word in more} - repeatable
    return (*(word for word in words if _name_of(word) not in given), *more)


def _name_of(word):
    name, _, value = word.partition("=")
    if name == "--set":
        return f"--set={value.partition('=')[0]}"
    return name.replace("--no-", "--") if word.startswith("--") else ""


def smoke_sweep(options: str) -> tuple[str, ...]:
    """Returns the words of a smoke sweep of resnet50 with options."""
    return ("sweep", "--workload=resnet50", "--preset=smoke", *options.split())


def plain(text):
    """Returns text with usual spaces."""
    return re.sub("[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}]", " ", text)


def written(expression, **context):
    """Returns what ``formats`` writes in a section, with usual spaces."""
    return plain(render_text(f"{{{{ formats.{expression} | safe }}}}", **context))


def visible(html):
    """Returns the text of a page, without its tags."""
    return plain(" ".join(re.sub(r"<[^>]+>", " ", html).split()))


_WHO = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")


def git(root: Path, *arguments: str) -> str:
    """Runs git as nobody in particular; returns what it prints."""
    return subprocess.run(
        ["git", *_WHO, "-c", "protocol.file.allow=always", *arguments],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(root: Path, name: str) -> None:
    """Commits all that is there, and tags it."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", name)
    git(root, "tag", name)


def run_module(name, *words):
    """Runs a module as ``python -m`` does; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [name, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    return ended.value.code


TESTS = Path(__file__).resolve().parents[1]
WORKER = (sys.executable, str(TESTS / "harness" / "fake_worker.py"), "--gate")
# At this alpha five repetitions can pass.
GATE = (
    "gate",
    "--workload=resnet50",
    "--preset=smoke",
    "--backends=in_graph",
    "--replicas=1",
    "--mode=weak",
    "--repeats=5",
    "--alpha=45%",
    "--measure-equal",
)
# Arguments: the repository, and then those of the harness.
DRIVER = f"""
import pathlib, sys
from harness import main
overrides = {{"worker_command": {WORKER!r}, "canary": lambda core: 0.2}}
overrides["source_root"] = pathlib.Path(sys.argv.pop(1))
sys.exit(main(run_overrides=overrides))
"""


def worktrees(repository):
    """Returns what git knows of worktrees besides the repository itself."""
    listed = git(repository, "worktree", "list", "--porcelain")
    return re.findall(r"^worktree (.*)", listed, re.MULTILINE)[1:]


TABLES = (WORKLOADS, BACKENDS, FORMATS, launchers._FOUND)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Returns a function that installs a package of one module; all is undone."""
    modules = set(sys.modules)
    tables = [dict(table) for table in TABLES]
    monkeypatch.setattr(plugins, "_used", {})
    monkeypatch.setattr(plugins, "_folders", [])
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(module, text, *, version="1.2", **entries):
        (site / f"{module}.py").write_text(text, encoding="utf-8")
        name = f"{module}_pack"
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        lines = []
        for kind, of_kind in entries.items():
            lines += [f"[replicator_harness.{kind}]"]
            lines += [f"{key} = {target}" for key, target in of_kind.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()
        return site

    yield make
    for name in set(sys.modules) - modules:
        if (site / f"{name}.py").exists() or (tmp_path / f"{name}.py").exists():
            del sys.modules[name]
    for subcommand in command_line.commands.values():
        subcommand.__dict__.pop("_params", None)
    for table, before in zip(TABLES, tables, strict=True):
        table.clear()
        table.update(before)
