"""The record of a gate, ``gate.json``: what it concluded, and by which rule.

Of two revisions, pages compute it from the trials and ``verify`` compares it. Against a
stored study the baseline is elsewhere: this record is all that the study has.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from results.records import limits
from results.records.models import SCHEMA_VERSION
from results.records.record_base import (
    ExitCode,
    Line,
    Name,
    Real,
    Record,
    Repeats,
    Text,
)


class GateCase(Record):
    """One case of a gate; a slowdown of 0.03 is 3 % slower, or 3 % worse."""

    name: Line
    backend: Name
    verdict: Name = Field(
        description="'no verdict' if there is none; of a count that is shown and not"
        " judged, 'rose' or 'fell'"
    )
    slowdown: Real | None = None
    low: Real | None = None
    high: Real | None = None
    n: Repeats | None = Field(default=None, description="generations, or seeds")
    before: Real | None = Field(
        default=None, description="of a count, which is exact: that of the baseline"
    )
    after: Real | None = Field(default=None, description="of a count: that judged")
    reason: Line = Field(default="", description="why there is no verdict")

    @model_validator(mode="after")
    def _check_count(self) -> GateCase:
        if (self.before is None) != (self.after is None):
            raise ValueError("a count has what it was and what it is, or neither")
        return self


class GateRecord(Record):
    """What a gate concluded."""

    schema_version: int = SCHEMA_VERSION
    verdict: Name = Field(description="'no verdict' if there is none of the whole")
    is_pass: bool
    headline: Text
    metric: Name
    worse: Name = Field(description="what a change is that makes it worse")
    baseline: Line
    delta: Real = Field(description="the slowdown, or loss, that matters")
    alpha: Annotated[float, Field(gt=0, lt=1)]
    exit_code: ExitCode
    unfit: Line = Field(default="", description="why the machine gave no verdict")
    is_weaker: bool = Field(default=False, description="against a stored study")
    is_advice: bool = Field(
        default=False,
        description="whether it decides nothing: the sides are of different days",
    )
    notes: Annotated[tuple[Text, ...], Field(max_length=limits.MAX_TRIALS)] = Field(
        default=(), description="when it looked, and what it saw besides its cases"
    )
    cases: Annotated[tuple[GateCase, ...], Field(max_length=limits.MAX_TRIALS)] = ()
    failures: Annotated[tuple[Line, ...], Field(max_length=limits.MAX_TRIALS)] = ()
