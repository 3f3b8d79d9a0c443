"""Sweeps of a program that connects by the client, started as it is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from command_words import overridden

from harness.run import rounds
from results.records.models import Control
from results.store.study_store import Store

CLIENT = Path(__file__).resolve().parents[3] / "harness" / "client"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, forked_trials: None) -> None:
    """Programs find the client; turns take 20 ms, which nobody looks at."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.02)
    monkeypatch.setattr(rounds, "SUSTAINED_SEC", 0.1)


@pytest.fixture
def sweep(
    client: None,
    harness: Any,
    overrides: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Returns a function that sweeps a program; it returns a trial and its folder.

    Variables for the program are given by name; the trial is the first of a control.
    """
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)

    def run(
        *words: str,
        command: str = f"{sys.executable} start.py {{replicas}}",
        replicas: object = 1,
        control: Control = Control.NONE,
        **variables: object,
    ) -> Any:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        usual = (
            *("--unit=images", "--per-replica-batch-size=4", "--mode=weak"),
            *("--repeats=1", "--study=s", f"--replicas={replicas}"),
        )
        turns = () if "--order=sequential" in words else ("--rounds=2",)
        _, _, err = harness(
            *("sweep", f"--command={command}", "--metric=client"),
            *overridden((*usual, *turns), *words),
            overrides=overrides,
        )
        assert (tmp_path / "runs" / "s").exists(), err
        store = Store.open(tmp_path / "runs" / "s")
        trial = next(of for of in store.trials() if of.spec.control is control)
        return trial, store.trial_dir(trial.trial_id)

    return run
