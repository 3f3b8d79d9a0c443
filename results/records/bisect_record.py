"""The record of a bisection: which commits were judged, and what each was found to be.

It lies beside the studies of its steps and is replaced after each, so that the same
command continues where it was killed.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from results.records import limits
from results.records.bounds import Fraction, Line, Name
from results.records.gate_record import GateCase
from results.records.models import SCHEMA_VERSION
from results.records.record_base import Record


class CommitVerdict(str, Enum):
    """What one step says of a commit.

    ``unfit``: the machine disturbed the step too much for any verdict, so the commit
    is judged again. A commit that is ``undecided`` or ``skipped`` is not.
    """

    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"
    UNFIT = "unfit"


Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class BisectStep(Record):
    """One commit that was judged beside the good one."""

    commit: Commit
    outcome: CommitVerdict
    level: Fraction = Field(
        description="probability of an error that the step was allowed; 0 where"
        " nothing was measured"
    )
    study: Name = Field(default="", description="empty where nothing was measured")
    cases: Annotated[tuple[GateCase, ...], Field(max_length=limits.MAX_TRIALS)] = ()
    reason: Line = Field(default="", description="why it is neither good nor bad")


class BisectRecord(Record):
    """A bisection so far."""

    schema_version: int = SCHEMA_VERSION
    request: Name = Field(description="digest of all that must not change")
    metric: Name
    worse: Name = Field(description="what a change is that makes it worse")
    delta: Annotated[float, Field(gt=0, le=1)]
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="accepted probability of a wrong answer, over all steps"
    )
    good: Commit
    commits: Annotated[
        tuple[Commit, ...], Field(min_length=1, max_length=limits.MAX_TRIALS)
    ] = Field(description="after the good one, oldest first; the last is the bad one")
    steps: Annotated[tuple[BisectStep, ...], Field(max_length=limits.MAX_TRIALS)] = ()
