"""``python -m benchmarks`` runs the requested benchmarks, and lists them."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.__main__")


@pytest.fixture
def commands(benchmarks, monkeypatch):
    """What it starts; nothing is measured, and reports fail."""
    started = []

    def run(command, *, check):
        assert not check
        started.append(command)
        return subprocess.CompletedProcess(command, "bench_report" in command[-1])

    monkeypatch.setattr(benchmarks.subprocess, "run", run)
    return started


def test_without_names_everything_is_measured(benchmarks, commands, capsys):
    """What could not be measured is named at the end, and the others are."""
    assert 1 == benchmarks.main([])
    assert list(benchmarks.COMMANDS.values()) == commands
    assert "not measured: report\n" in capsys.readouterr().err


def test_names_choose_what_is_measured(benchmarks, commands):
    assert 0 == benchmarks.main(["workers", "input"])
    assert [benchmarks.COMMANDS[name] for name in ("workers", "input")] == commands


def test_an_unknown_name_is_answered_with_the_known(benchmarks, commands, capsys):
    """Before anything is measured."""
    with pytest.raises(SystemExit) as raised:
        benchmarks.main(["report", "worker"])

    assert 2 == raised.value.code
    assert [] == commands
    assert "unknown benchmark 'worker'; known are command-line, " in (
        capsys.readouterr().err
    )


def test_every_benchmark_is_there(benchmarks):
    """A renamed file would otherwise be noticed in the middle of a run."""
    for command in benchmarks.COMMANDS.values():
        assert sys.executable == command[0]
        names = [part for part in command if "bench_" in part]
        path = names[0].removesuffix(".py").replace(".", "/") + ".py"
        assert (ROOT / path).is_file(), path
