"""The records of one study, as they are stored on disk.

Names and units follow ``docs/glossary.md``.
"""

from __future__ import annotations

import operator
import statistics
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from results.records import program as program_lib
from results.records.measuring import (
    Allocator,
    Block,
    Contrast,
    Control,
    Environment,
    Measuring,
    Order,
    Placement,
)
from results.records.program import Evidence, Identity, Program, Readings
from results.records.record_base import (
    MAX_BUDGET,
    MAX_CHECKS,
    MAX_EVALUATIONS,
    MAX_LOSSES,
    MAX_METRICS,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TRIALS,
    Amount,
    BatchSize,
    Changes,
    Cores,
    ExitCode,
    FileName,
    FlopRate,
    Fraction,
    GlobalBatchSize,
    Index,
    Line,
    Name,
    Nanoseconds,
    OptionValue,
    PositiveTotal,
    Rank,
    Real,
    Record,
    Repeats,
    Replicas,
    Seconds,
    Seed,
    Steps,
    Text,
    Total,
    TrialId,
    Word,
    mapping,
    optional,
)

__all__ = [  # of other modules
    "Allocator",
    "Block",
    "Contrast",
    "Control",
    "Environment",
    "Evidence",
    "Measuring",
    "OptionValue",
    "Order",
    "Placement",
    "Program",
    "Readings",
    "Record",
]

SCHEMA_VERSION = 6


class BudgetUnit(str, Enum):
    """Unit of a quality run's budget; seconds count its training steps only."""

    SECONDS = "seconds"
    STEPS = "steps"
    EXAMPLES = "examples"


class Budget(Record):
    """How long a quality run trains, and how often its quality is measured."""

    amount: float = Field(gt=0, le=MAX_BUDGET)
    unit: BudgetUnit
    num_evaluations: int = Field(
        ge=1, le=MAX_EVALUATIONS, description="evenly spaced, the last at the end"
    )

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit.value}"


class MetricFacts(Record):
    """What the figures of a metric mean, as its workload declares it."""

    name: Name
    title: Name = Field(description="what readers call it")
    unit: Name
    is_higher_better: bool | None = Field(
        description="which way it gets better; null if neither way is better"
    )
    tolerance: float = Field(
        gt=0, lt=1, description="loss, relative to a baseline, that its gate accepts"
    )
    protocol: Line = Field(description="how it is measured, on how many examples")
    is_of_window: bool = optional(
        "a rate of the measured window, not what was learned", False
    )

    @property
    def is_judged(self) -> bool:
        """Whether a gate can say which of two results is better."""
        return self.is_higher_better is not None and not self.is_of_window


class QualityMetric(Record):
    """One learning-quality figure with its count and interval."""

    name: Name
    value: Real
    unit: Name
    num_examples: PositiveTotal = Field(description="n")
    low: Real
    high: Real
    confidence: Fraction = 0.95
    method: Line
    protocol: Line = optional(
        "what else the figure depends on; two protocols share no axis", ""
    )


Metrics = Annotated[tuple[QualityMetric, ...], Field(max_length=MAX_METRICS)]


class QualityPoint(Record):
    """Quality at one point of a quality run; counts include all its steps so far."""

    num_steps: PositiveTotal
    num_examples: PositiveTotal = Field(description="steps times the global batch size")
    train_time_sec: Amount = Field(
        description="of all steps except the first, which traces; no evaluation"
    )
    num_environment_steps: Total | None = optional(
        "of all actors so far; None without any"
    )
    quality: Metrics
    samples: FileName = optional("file in the trial's directory: a picture, as PNG", "")


class ScalingMode(str, Enum):
    """How total work depends on replicas: weak grows it, strong keeps it fixed."""

    WEAK = "weak"
    STRONG = "strong"


class TrialSpec(Record):
    """The configuration of one trial; its content hash is the trial's id.

    A case is everything but ``repetition_index`` and ``seed``. The scaling mode is not
    part of it: the baseline with one replica serves both weak and strong scaling. A
    trial with a budget is a quality run: after its measured window it continues to
    train.
    """

    # Steps that are started before their losses are read.
    steps_per_sync: Steps = 1
    schema_version: Literal[6] = 6
    workload: Name
    workload_version: Name
    code_digest: Name = Field(description="digest of the measured code")
    preset: Name
    data: Line
    backend: Name
    device: Literal["cpu", "gpu"] = "cpu"
    num_replicas: Replicas
    per_replica_batch_size: BatchSize
    global_batch_size: GlobalBatchSize
    cores_per_replica: Cores
    num_warmup_steps: Steps
    num_measured_steps: Steps | None = Field(
        description="None if cases are interleaved (as many as fit into their blocks),"
        " and of a program of the user's that ends by itself"
    )
    order: Order = Order.SEQUENTIAL
    control: Control = Control.NONE
    allocator: Allocator = Allocator.DEFAULT
    variables: dict[Name, Line] = mapping(
        "environment variables that can change the numbers"
    )
    revision: Name = optional("whose code runs; empty for the tree of the harness", "")
    program: Program | None = optional(
        "of the user's; its readings take the place of steps"
    )
    plugins: dict[Name, Line] = mapping(
        "MODULE:NAME of a workload or a backend that a plugin has", max_length=10
    )
    is_evaluated: bool = Field(description="whether held-out quality is measured")
    budget: Budget | None = None
    options: dict[Name, OptionValue] = mapping()
    repetition_index: Index
    seed: Seed
    is_abridged: bool = optional(
        "exported, with masks in its texts: its ids are of the whole spec",
        False,
        exclude_if=operator.not_,
    )

    @property
    def devices_per_replica(self) -> int:
        """Devices of each replica: of stages of a pipeline, or of a mesh."""
        return program_lib.devices_per_replica(self.options, self.backend)

    @property
    def num_devices(self) -> int:
        """Devices of all replicas; with one, nothing can differ from one device."""
        return self.num_replicas * self.devices_per_replica

    @property
    def is_client(self) -> bool:
        """Whether a program of the user's connects, and records its own steps."""
        return self.program is not None and self.program.is_client

    @property
    def has_readings(self) -> bool:
        """Whether numbers that a program of the user's prints stand for steps."""
        return self.program is not None and not self.program.is_client


class PlannedTrial(Record):
    """One trial of a plan and the scaling modes that its case serves."""

    trial_id: TrialId
    case_id: TrialId
    modes: tuple[ScalingMode, ...] = Field(min_length=1, max_length=2)
    spec: TrialSpec


class EquivalenceCheck(Record):
    """What shows that N replicas of a study match one, before a number counts."""

    trials: tuple[PlannedTrial, ...] = optional(
        "stored apart, not timed", (), max_length=MAX_TRIALS
    )
    not_checked: dict[Name, Line] = mapping("reasons, by backend")
    remarks: dict[Name, Line] = mapping(
        "what is changed to make them comparable, by backend"
    )


class Plan(Record):
    """The trials of a study, in execution order."""

    schema_version: Literal[6] = 6
    study: Name
    created_at: Name = Field(description="RFC 3339, UTC")
    command: tuple[Text, ...] = Field(max_length=10_000)
    baseline_num_replicas: Replicas
    repeats: Repeats
    seed: Seed
    timeout_sec: Seconds
    data_dir: Line | None = optional("directory of TFDS data sets, if not that of TFDS")
    measuring: Measuring = Measuring()
    equivalence: EquivalenceCheck | None = optional(
        "None if an earlier version made the plan"
    )
    draws_random_numbers: bool = optional(
        "whether steps do, so that losses of backends are not comparable", False
    )
    amplifies_rounding: bool = optional(
        "whether models do, so that only the losses of backends before the"
        " first update are comparable",
        False,
    )
    metrics: tuple[MetricFacts, ...] = optional(
        "what the workload measures", (), max_length=MAX_METRICS
    )
    program_code: dict[Name, Identity] = mapping(
        "of a program of the user's: what its code digest is made of, by"
        " revision; empty for the present one",
        max_length=10,
    )
    plugins: dict[Name, Identity] = mapping(
        "what packages of others had, such as 'workload mine': its object,"
        " package and version, and the digest of its files",
        max_length=100,
    )
    trials: tuple[PlannedTrial, ...] = Field(max_length=MAX_TRIALS)


class TrialStatus(Word):
    """How a trial ended.

    ``failed_checks``: a sanity check failed. ``discarded``: the machine disturbed every
    block.
    """

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED_CHECKS = "failed_checks"
    SKIPPED = "skipped"
    DISCARDED = "discarded"


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
    exit_code: ExitCode | None = None
    failure: Failure | None = None

    @property
    def reason(self) -> str:
        """Why it is not ok, in one line."""
        failure = self.failure
        return "no reason was recorded" if failure is None else failure.reason


class SanityCheck(Record):
    """One correctness check of a trial; if it failed, the numbers are not used."""

    name: Name
    is_passed: bool
    detail: Text


class RankTimes(Record):
    """Step times of one process, in order; nothing is dropped."""

    rank: Rank
    time_to_first_step_sec: Amount = Field(
        description="0 where it was not measured: other trials started beside this one"
    )
    warmup_step_time_sec: tuple[Seconds, ...] = Field(
        max_length=MAX_STEPS,
        description="empty only of a program that printed one number",
    )
    step_time_sec: tuple[Seconds, ...] = Field(min_length=1, max_length=MAX_STEPS)
    window_start_ns: Nanoseconds = Field(description="CLOCK_MONOTONIC of its machine")
    window_end_ns: Nanoseconds
    losses: tuple[Real, ...] = Field(
        max_length=MAX_LOSSES, description="up to the first that is not finite"
    )
    peak_memory_bytes: Total
    peak_flops_per_sec: FlopRate | None = optional(
        "of matrix products on the devices of the process"
    )


class TrialResult(Record):
    """Raw observations of a trial that completed."""

    schema_version: Literal[6] = 6
    trial_id: TrialId
    example_unit: Name
    num_parameters: Total
    flops_per_example: Total | None = optional(
        "of the model in training, two per multiply-add"
    )
    global_batch_size: GlobalBatchSize
    num_measured_steps: Steps
    window_sec: Seconds = Field(
        description="latest start to latest end over ranks; on several machines, of"
        " the slowest rank; in an interleaved measurement, of all blocks"
    )
    blocks: tuple[Block, ...] = Field(default=(), max_length=MAX_STEPS)
    ranks: tuple[RankTimes, ...] = Field(min_length=1, max_length=MAX_REPLICAS)
    sanity: tuple[SanityCheck, ...] = Field(max_length=MAX_CHECKS)
    quality: Metrics = optional("at the end", ())
    curve: tuple[QualityPoint, ...] = optional(
        "of a quality run", (), max_length=MAX_EVALUATIONS + 1
    )
    window_metrics: Metrics = optional(
        "rates that the program recorded in the measured window, and what"
        " was counted of its last warm-up step",
        (),
    )
    changes: Changes = optional("by the first steps, of a trial that is matched", ())
    collectives: Text = optional("the backend's explain() text", "")
    readings: Readings | None = optional(
        "of a program of the user's: each stands for the time of a global batch at the"
        " rate that was printed"
    )

    @property
    def examples_per_sec(self) -> float:
        """Throughput: examples of the global batch per second in the window."""
        if self.blocks:
            rates = self.rates or self.rates_beside_load
            return statistics.geometric_mean(rates.values())
        return self.global_batch_size * self.num_measured_steps / self.window_sec

    @property
    def rates(self) -> dict[int, float]:
        """Examples per second of the valid blocks, by round; empty without blocks."""
        return {
            block.round_index: self.global_batch_size * block.num_steps / block.time_sec
            for block in self.blocks
            if block.is_valid and not block.is_sustained
        }

    @property
    def rates_beside_load(self) -> dict[int, float]:
        """The same of the least disturbed block of each round; no evidence."""
        chosen: dict[int, Block] = {}
        for block in self.blocks:
            if block.num_retraces or block.is_sustained:
                continue
            known = chosen.setdefault(block.round_index, block)
            if block.load < known.load:
                chosen[block.round_index] = block
        return {
            index: self.global_batch_size * block.num_steps / block.time_sec
            for index, block in chosen.items()
        }

    def steps_of_blocks(
        self, *, is_sustained: bool = False
    ) -> dict[int, list[tuple[float, ...]]]:
        """Returns the step times of each process in each valid block, by round."""
        steps: dict[int, list[tuple[float, ...]]] = {}
        first = 0
        for block in self.blocks:
            last = first + block.num_steps
            if block.is_valid and block.is_sustained is is_sustained:
                steps[block.round_index] = [
                    rank.step_time_sec[first:last] for rank in self.ranks
                ]
            first = last
        return steps


# Of a gate against a stored study, this record is all that the study has.


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
    n: Repeats | None = optional("runs, or seeds")
    before: Real | None = optional("of a count, which is exact: that of the baseline")
    after: Real | None = optional("of a count: that judged")
    reason: Line = optional("why there is no verdict", "")

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
    unfit: Line = optional("why the machine gave no verdict", "")
    is_weaker: bool = optional("against a stored study", False)
    is_advice: bool = optional(
        "whether it decides nothing: the sides are of different days", False
    )
    notes: tuple[Text, ...] = optional(
        "when it looked, and what it saw besides its cases", (), max_length=MAX_TRIALS
    )
    cases: tuple[GateCase, ...] = Field(default=(), max_length=MAX_TRIALS)
    failures: tuple[Line, ...] = Field(default=(), max_length=MAX_TRIALS)
