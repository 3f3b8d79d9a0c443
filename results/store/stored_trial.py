"""What is read of a study: its trials, and the records that are damaged."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib

    from results.records.models import (
        Environment,
        StatusRecord,
        TrialResult,
        TrialSpec,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The records of one trial."""

    trial_id: str  # The folder's name.
    spec: TrialSpec  # The configuration.
    env: Environment | None  # The machine, or None before the trial has started.
    status: StatusRecord | None  # How it ended, or None while it has not.
    result: TrialResult | None  # The observations, or None where there are none.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A record that cannot be read, and the reason in one line."""

    path: pathlib.Path
    reason: str

    @property
    def label(self) -> str:
        """Folder and file name, printable and valid UTF-8."""
        return repr(f"{self.path.parent.name}/{self.path.name}")[1:-1]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one reading of a study found."""

    trials: tuple[Trial, ...]  # The readable trials by id, including unfinished ones.
    problems: tuple[Problem, ...]  # The damaged records, by path.
