"""An MPI program that connects: ``mpirun`` says the ranks, and they take turns."""

import shutil
from pathlib import Path

import pytest

from harness.cli import exit_codes
from harness.run import rounds
from results.records.models import Control
from results.store.study_store import Store

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
    ),
]
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
    """One rank and two, in one relay with a twin; nothing names the ranks."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))
    for name in ("", "_CONFIRM"):  # as containers run tests; mpirun refuses otherwise
        monkeypatch.setenv(f"OMPI_ALLOW_RUN_AS_ROOT{name}", "1")
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
