"""Keeps the last good checkpoint of a quality run, in case a later loss is not finite.

A process of the trial writes it at each evaluation, replacing the previous one; the
parent removes it from a trial that completed, unless requested to keep it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

DIRECTORY = "checkpoint"
"""Relative to the directory of the trial."""


class Savable(Protocol):
    """The part of ``workloads.spec.StepProgram`` that is needed here."""

    def save(self, directory: str) -> str | None:
        """Writes a checkpoint; returns its prefix, or None where there is none."""


class LastGood:
    """Writes checkpoints of a program, and knows where the last one is."""

    def __init__(self, trial_dir: Path) -> None:
        self._trial_dir = trial_dir
        self._found = ""

    def save(self, program: Savable, num_steps: int) -> None:
        """Writes the checkpoint of a program after ``num_steps`` steps."""
        try:
            prefix = program.save(str(self._trial_dir / DIRECTORY))
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}; {self}") from error
        if prefix is not None:
            path = Path(prefix).resolve().relative_to(self._trial_dir.resolve())
            self._found = (
                f"the last good checkpoint, after {num_steps} steps, is "
                f"{Path('trials') / self._trial_dir.name / path} in the study"
            )

    def __str__(self) -> str:
        """Says where the checkpoint is, for a message."""
        return self._found or "there is no checkpoint: none was due before this step"


def remove(trial_dir: Path) -> None:
    """Removes what ``LastGood`` wrote."""
    shutil.rmtree(trial_dir / DIRECTORY, ignore_errors=True)
