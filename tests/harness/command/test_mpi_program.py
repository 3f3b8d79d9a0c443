"""MPI programs under a real ``mpirun``: one that prints, and one that connects."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import exit_codes
from harness.run import rounds
from harness.trial import process_tree
from results.records.models import Control, Evidence
from results.store.study_store import Store

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
    ),
]

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "heat_mpi.py"
BINDINGS = Path(__file__).parent / "mpi_without_bindings"
# Two ranks on the cores of one trial, which it is pinned to already.
MPIRUN = "mpirun --oversubscribe --bind-to none"


@pytest.fixture(autouse=True)
def _as_root(monkeypatch):
    """As containers run tests; mpirun refuses otherwise. And finds its library."""
    for name in ("", "_CONFIRM"):
        monkeypatch.setenv(f"OMPI_ALLOW_RUN_AS_ROOT{name}", "1")
    if importlib.util.find_spec("mpi4py") is None:
        monkeypatch.setenv("PYTHONPATH", str(BINDINGS))


def test_it_computes_the_same_on_one_rank_and_on_two():
    """The ends are exchanged: a rod of 2000 cells, however it is cut."""
    said = []
    for ranks in (1, 2):
        done = subprocess.run(
            [
                *MPIRUN.split(),
                *("-n", str(ranks), sys.executable, str(EXAMPLE), str(2000 // ranks)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        said.append(done.stdout.splitlines()[-1].partition("; "))

    assert said[0][0] == said[1][0]
    assert float(said[0][0].removeprefix("heat: ")) > 1
    assert ("sent 0 bytes", "sent 32000 bytes") == (said[0][2], said[1][2])


def test_the_documented_command_of_mpirun_is_measured(harness, tmp_path, monkeypatch):
    """Every rank is found and counted; what it sends is counted exactly.

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
    words = shlex.split(command.replace("weak,strong", "weak"))
    short = ("--repeats=2", "--study=heat")
    code, out, err = harness(*words, *short)

    assert exit_codes.OK == code, err
    assert "cells/s" in out
    store = Store(tmp_path / "runs" / "heat")
    trials = [*store.trials()]
    assert 4 == len(trials)
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


CLIENT = Path(__file__).resolve().parents[3] / "harness" / "client"
PROGRAM = """
import time

import scaling_client

run = scaling_client.connect()
for step in run.steps():
    time.sleep(0.004)
    step.done(examples=4)
"""


def test_ranks_of_mpirun_take_turns(harness, tmp_path, overrides, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.02)
    (tmp_path / "train.py").write_text(PROGRAM)
    code, _, err = harness(
        "sweep",
        "--command=mpirun --oversubscribe --bind-to none -n {replicas}"
        " python3 train.py",
        *("--metric=client", "--global-batch-size=4", "--replicas=1,2"),
        *("--mode=strong", "--repeats=1", "--rounds=5", "--study=m"),
        overrides=overrides,
    )

    assert exit_codes.OK == code, err
    trials = [*Store(tmp_path / "runs" / "m").trials()]
    found = {
        (trial.spec.num_replicas, trial.spec.control): trial.result for trial in trials
    }
    assert {1, 2} == {number for number, _ in found}
    for (number, _), result in found.items():
        assert list(range(number)) == [rank.rank for rank in result.ranks]
        assert 5 <= len(result.turns)
    assert any(control is Control.TWIN for _, control in found)
