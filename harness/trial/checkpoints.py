"""The last good checkpoint of a quality run, for the case that the next loss is bad.

A process of the trial writes it at each evaluation, in place of the one before; the
parent removes it from a trial that came to its end, unless asked to keep it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

DIRECTORY = "checkpoint"
"""Below the directory of the trial."""


class Savable(Protocol):
    """The part of ``workloads.spec.StepProgram`` that is needed here."""

    def save(self, directory: str) -> str | None:
        """Writes a checkpoint; returns its prefix, or None where there is none."""


class LastGood:
    """Writes checkpoints of a program, and says where the last one is."""

    def __init__(self, trial_dir: Path) -> None:
        self._trial_dir = trial_dir
        self._found = ""

    def save(self, program: Savable, num_steps: int) -> None:
        """Writes the checkpoint of a program after ``num_steps`` steps.

        Raises:
          FloatingPointError: The program has come to values that are not finite.
        """
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
        """Where it is, for a message."""
        return self._found or "there is no checkpoint yet: none was due before"


def remove(trial_dir: Path) -> None:
    """Removes what ``LastGood`` wrote."""
    shutil.rmtree(trial_dir / DIRECTORY, ignore_errors=True)
