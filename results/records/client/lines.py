"""What a program writes down: the lines of ``rank_<k>.jsonl``.

``results.records.client.protocol`` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from results.records import limits
from results.records.bounds import (
    Amount,
    FlopRate,
    GlobalBatchSize,
    Line,
    Name,
    Nanoseconds,
    Real,
    Replicas,
    Seconds,
    Text,
    Total,
)
from results.records.changes import Change
from results.records.client.messages import Rank, TurnFacts
from results.records.quality_records import QualityMetric, QualityPoint
from results.records.record_base import Record
from results.records.status_record import Failure, Phase

Loss = Real | Literal["nan", "inf", "-inf"] | None


class TrialLine(Record):
    """Whose observations these are: the name of the trial's directory, and a nonce."""

    kind: Literal["trial"]
    trial_id: Name
    nonce: Name


class PhaseLine(Record):
    """The process enters a phase."""

    kind: Literal["phase"]
    phase: Phase
    ns: Nanoseconds


class ClientLine(Record):
    """Which version the process speaks, and who it is."""

    kind: Literal["client"]
    protocol: Literal[3]
    rank: Rank
    num_ranks: Replicas


class ClockLine(Record):
    """Whose clock the times are of, where there are several processes."""

    kind: Literal["clock"]
    host: Name


class FactsLine(Record):
    """What is trained; before the first step."""

    kind: Literal["facts"]
    num_parameters: Total = Field(description="0 where it is not known")
    flops_per_example: Total | None = None
    example_unit: Name
    global_batch_size: GlobalBatchSize


class StepLine(Record):
    """One step; the index counts over all phases from 0."""

    kind: Literal["step"]
    phase: Phase
    index: int = Field(ge=0, lt=limits.MAX_LOSSES)
    start_ns: Nanoseconds
    end_ns: Nanoseconds = Field(description="after all work of the device")
    loss: Loss = Field(description="mean over the global batch; null if there is none")


class FirstStepLine(Record):
    """The first step is done."""

    kind: Literal["first_step_done"]
    time_to_first_step_sec: Seconds
    is_alone: bool = Field(description="as ``build`` said; true without a relay")


class TurnLine(TurnFacts):
    """The turn whose steps are the lines before; as it is sent."""

    kind: Literal["turn"]


class PeakLine(Record):
    """The peak rate of the devices of the process, where it was measured."""

    kind: Literal["peak"]
    flops_per_sec: FlopRate
    method: Line


class GpuCanaryLine(Record):
    """Rates of a matrix product on each GPU of the process, before warm-up."""

    kind: Literal["gpu_canary"]
    tflops: tuple[Amount, ...] = Field(max_length=limits.MAX_REPLICAS)
    reason: Line = Field(default="", description="why there is none")


class ExplainLine(Record):
    """A description of the collectives in a step."""

    kind: Literal["explain"]
    collectives: Text


class MemoryLine(Record):
    """The peak of the measured steps."""

    kind: Literal["memory"]
    peak_memory_bytes: Total
    method: Line


class HeartbeatLine(Record):
    """The process is alive; in a long window every few seconds."""

    kind: Literal["heartbeat"]
    ns: Nanoseconds


class SanityLine(Record):
    """One check of correctness; a trial that fails one gives no number."""

    kind: Literal["sanity"]
    name: Name
    is_passed: bool
    detail: Text


class QualityLine(QualityMetric):
    """What was learned, at the end."""

    kind: Literal["quality"]


class WindowMetricLine(QualityMetric):
    """What the program counted within the measured steps."""

    kind: Literal["window_metric"]


class PointLine(QualityPoint):
    """What was learned so far; of a quality run."""

    kind: Literal["point"]


class ChangeLine(Change):
    """What the first steps changed; of a trial that is matched."""

    kind: Literal["change"]


class FailureLine(Failure):
    """Why the process failed."""

    kind: Literal["failure"]


class DoneLine(Record):
    """The process has done all that the harness asked for."""

    kind: Literal["done"]
    ns: Nanoseconds


RankLine = Annotated[
    TrialLine
    | PhaseLine
    | ClientLine
    | ClockLine
    | FactsLine
    | StepLine
    | FirstStepLine
    | TurnLine
    | PeakLine
    | GpuCanaryLine
    | ExplainLine
    | MemoryLine
    | HeartbeatLine
    | SanityLine
    | QualityLine
    | WindowMetricLine
    | PointLine
    | ChangeLine
    | FailureLine
    | DoneLine,
    Field(discriminator="kind"),
]
"""A line of ``rank_<k>.jsonl``."""
