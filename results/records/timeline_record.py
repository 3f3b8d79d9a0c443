"""The record of one step of a case, recorded by ``trace --keep`` after the study."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from results.records import limits
from results.records.bounds import Amount, Fraction, Index, Line, Name, Seconds, TrialId
from results.records.record_base import Record


class Span(Record):
    """Something that a row did for some time."""

    row: Index = Field(description="its place in ``rows``")
    name: Line = Field(
        description="of a layer, a task, a bucket, or of what is awaited"
    )
    kind: Literal["compute", "collective", "wait"]
    begin_sec: Amount = Field(description="since the begin of the step")
    end_sec: Amount


class Timeline(Record):
    """The last recorded step of a case: no number of a study is made of it."""

    schema_version: Literal[6] = 6
    case_id: TrialId
    recorded_at: Name = Field(description="RFC 3339, UTC")
    step_sec: Seconds
    cost: Amount = Field(description="of a step with marks, relative to one without")
    clock_bound_sec: Amount = Field(
        description="how far clocks of workers may be apart"
    )
    communication_share: Fraction = Field(
        description="of a step in which a replica communicates and computes nothing"
    )
    rows: tuple[Line, ...] = Field(min_length=1, max_length=limits.MAX_TIMELINE_ROWS)
    spans: tuple[Span, ...] = Field(min_length=1, max_length=limits.MAX_TIMELINE_SPANS)

    @model_validator(mode="after")
    def _check_rows(self) -> Timeline:
        if any(span.row >= len(self.rows) for span in self.spans):
            raise ValueError(f"a span is in a row that is not one of {len(self.rows)}")
        return self
