"""How a trial ended: its status, and the phase and reason of a failure."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import Field

from results.records import record_base
from results.records.record_base import (
    Amount,
    Line,
    Name,
    Record,
    Text,
    TrialId,
)


class TrialStatus(str, Enum):
    """How a trial ended.

    ``insane``: a sanity check failed. ``void``: the machine disturbed every turn.
    """

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    INSANE = "insane"
    SKIPPED = "skipped"
    VOID = "void"

    @property
    def label(self) -> str:
        """What users read; records store the value."""
        labels = {TrialStatus.INSANE: "failed_checks", TrialStatus.VOID: "discarded"}
        return labels.get(self, self.value)


class Phase(str, Enum):
    """The phases of a trial, in order."""

    LAUNCH = "launch"
    BUILD = "build"
    FIRST_STEP = "first_step"
    WARMUP = "warmup"
    MEASURE = "measure"
    TRAIN = "train"
    SANITY = "sanity"
    REPORT = "report"


class Failure(Record):
    """Why a trial is not ok."""

    phase: Phase
    reason: Line = Field(description="one line")
    exception_type: Name | None = None
    traceback: Text | None = None

    @property
    def place(self) -> tuple[str, ...]:
        """A line that was refused, and the carets under it; empty if there is none."""
        lines = tuple((self.traceback or "").splitlines()[:2])
        is_place = len(lines) == 2 and set(lines[1].strip()) == {"^"}  # noqa: PLR2004
        return lines if is_place else ()


class StatusRecord(Record):
    """How a trial ended; written last, so its presence means that the trial is over."""

    schema_version: Literal[6] = 6
    trial_id: TrialId
    status: TrialStatus
    started_at: Name
    ended_at: Name
    duration_sec: Amount
    exit_code: record_base.ExitCode | None = None
    failure: Failure | None = None
