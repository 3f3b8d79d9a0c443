"""MPI programs under a real ``mpirun``: one that prints, and one that connects."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.cli import exit_codes
from harness.trial import process_tree
from results.records.models import Evidence
from results.store.study_store import Store

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
    ),
    pytest.mark.usefixtures("forked_trials"),
]

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "heat_mpi.py"
BINDINGS = Path(__file__).parent / "mpi_without_bindings"


@pytest.fixture(autouse=True)
def _as_root(monkeypatch):
    """As containers run tests; mpirun refuses otherwise. And finds its library."""
    for name in ("", "_CONFIRM"):
        monkeypatch.setenv(f"OMPI_ALLOW_RUN_AS_ROOT{name}", "1")
    if importlib.util.find_spec("mpi4py") is None:
        monkeypatch.setenv("PYTHONPATH", str(BINDINGS))


def test_the_documented_command_of_mpirun_is_measured(harness, tmp_path, monkeypatch):
    """Every rank is found; what it sends is counted exactly; and it computes the same.

    With fewer cells, and in one mode.
    """
    (command,) = re.findall(
        r"^ {4}python -m harness (.*mpirun.*)$",
        (EXAMPLE.parents[1] / "command.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    shutil.copy(EXAMPLE, tmp_path)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    command = command.replace(" 200000", " 2000")  # which takes seconds
    words = shlex.split(command.replace("weak,strong", "strong"))
    short = ("--repeats=2", "--study=heat")
    code, out, err = harness(*words, *short)

    assert exit_codes.OK == code, err
    assert "cells/s" in out
    store = Store(tmp_path / "runs" / "heat")
    trials = [*store.trials()]
    assert 4 == len(trials)
    said = [path.read_text() for path in (tmp_path / "runs").rglob("stdout.log")]
    (heat,) = {re.search(r"heat: (\S+);", text)[1] for text in said}
    assert 4 == len(said)
    assert float(heat) > 1
    for trial in trials:
        number = trial.spec.num_replicas
        assert trial.result.readings.evidence is Evidence.WINDOW
        assert 10 == trial.result.readings.num_readings
        assert number + 1 <= trial.result.readings.num_processes
        assert () == trial.result.readings.remarks
        (count,) = trial.result.window_metrics
        assert 32000 * (number - 1) == count.value
        folder = store.trial_dir(trial.trial_id).resolve()
        assert [] == process_tree.find_tree(str(folder))
