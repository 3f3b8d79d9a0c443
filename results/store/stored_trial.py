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
    """The records of one trial.

    Attributes:
      trial_id: The folder's name.
      spec: The configuration.
      env: The machine, or None before the trial has started.
      status: How it ended, or None while it has not.
      result: The observations, or None where there are none.
    """

    trial_id: str
    spec: TrialSpec
    env: Environment | None
    status: StatusRecord | None
    result: TrialResult | None


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
    """What one reading of a study found.

    Attributes:
      trials: The readable trials by id, including unfinished ones.
      problems: The damaged records, by path.
    """

    trials: tuple[Trial, ...]
    problems: tuple[Problem, ...]
