"""The records of one study, as they are stored on disk.

History of ``SCHEMA_VERSION``:

1. First version.
2. Quality runs: ``TrialSpec.budget`` and ``TrialResult.curve``;
   ``QualityMetric.protocol``.
3. ``TrialResult.window_metrics`` and ``QualityPoint.num_environment_steps``.

Every record is immutable, rejects unknown fields and values outside the bounds
of ``results/bounds.py``, and carries its version. Names and units follow
``docs/glossary.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from results import bounds, limits
from results.bounds import (
    Amount,
    BatchSize,
    Cores,
    FileName,
    Fraction,
    GlobalBatchSize,
    Index,
    Line,
    Name,
    OptionValue,
    PositiveTotal,
    Real,
    Repeats,
    Replicas,
    Seconds,
    Seed,
    Steps,
    Text,
    Total,
    TrialId,
)

__all__ = [
    "SCHEMA_VERSION",
    "Budget",
    "BudgetUnit",
    "Environment",
    "Failure",
    "OptionValue",
    "Phase",
    "Placement",
    "Plan",
    "PlannedTrial",
    "QualityMetric",
    "QualityPoint",
    "RankTimes",
    "Record",
    "SanityCheck",
    "ScalingMode",
    "StatusRecord",
    "TrialResult",
    "TrialSpec",
    "TrialStatus",
]

SCHEMA_VERSION = 3

CpuSet = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.MAX_REPLICAS)], ...],
    Field(max_length=limits.MAX_REPLICAS),
]
StepTimes = Annotated[
    tuple[Seconds, ...], Field(min_length=1, max_length=limits.MAX_STEPS)
]
Metrics = Annotated[tuple["QualityMetric", ...], Field(max_length=limits.MAX_METRICS)]


class Record(BaseModel):
    """Base of all records: frozen, closed, bounded."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScalingMode(str, Enum):
    """How total work depends on replicas: weak grows it, strong keeps it fixed."""

    WEAK = "weak"
    STRONG = "strong"


class TrialStatus(str, Enum):
    """How a trial ended; ``insane`` means that a sanity check failed."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    INSANE = "insane"
    SKIPPED = "skipped"


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


class BudgetUnit(str, Enum):
    """Unit of a quality run's budget; seconds count its training steps only."""

    SECONDS = "seconds"
    STEPS = "steps"
    EXAMPLES = "examples"


class Budget(Record):
    """How long a quality run trains, and how often its quality is measured."""

    amount: float = Field(gt=0, le=limits.MAX_BUDGET)
    unit: BudgetUnit
    num_evaluations: int = Field(
        ge=1,
        le=limits.MAX_EVALUATIONS,
        description="evenly spaced, the last at the end",
    )

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit.value}"


class TrialSpec(Record):
    """The configuration of one trial; its content hash is the trial's id.

    A case is everything but ``repetition_index`` and ``seed``. The scaling mode is not
    part of it: the baseline with one replica serves both weak and strong scaling. A
    trial with a budget is a quality run: after its measured window it continues to
    train.
    """

    schema_version: Literal[3] = 3
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
    num_measured_steps: Steps
    is_evaluated: bool = Field(description="whether held-out quality is measured")
    budget: Budget | None = None
    options: dict[Name, OptionValue] = Field(default_factory=dict, max_length=1_000)
    repetition_index: Index
    seed: Seed


class PlannedTrial(Record):
    """One trial of a plan and the scaling modes that its case serves."""

    trial_id: TrialId
    case_id: TrialId
    modes: tuple[ScalingMode, ...] = Field(min_length=1, max_length=2)
    spec: TrialSpec


class Plan(Record):
    """The trials of a study, in execution order."""

    schema_version: Literal[3] = 3
    study: Name
    created_at: Name = Field(description="RFC 3339, UTC")
    command: tuple[Text, ...] = Field(max_length=10_000)
    baseline_num_replicas: Replicas
    repeats: Repeats
    seed: Seed
    timeout_sec: Seconds
    data_dir: Line | None = Field(
        default=None, description="directory of TFDS data sets, if not that of TFDS"
    )
    trials: tuple[PlannedTrial, ...] = Field(max_length=limits.MAX_TRIALS)


class Placement(Record):
    """Cores and threads of a trial's processes."""

    cpusets: tuple[CpuSet, ...] = Field(
        max_length=2 * limits.MAX_REPLICAS,
        description="per process, disjoint where processes run replicas",
    )
    cores_per_replica: Cores
    num_intra_op_threads: Cores
    num_inter_op_threads: Cores
    num_available_cores: Cores
    cgroup_quota_cores: Amount | None = None
    is_oversubscribed: bool
    device_sharing: Literal["exclusive", "shared"]


class Environment(Record):
    """Facts about the machine and software of one trial, without the host name."""

    schema_version: Literal[3] = 3
    fingerprint: Name = Field(
        description="hash of the facts that must match to compare"
    )
    cpu_model: Name
    num_physical_cores: Cores | None
    num_logical_cores: Cores
    memory_bytes: Total
    gpus: tuple[Name, ...] = Field(default=(), max_length=1_000)
    kernel: Name
    python_version: Name
    packages: dict[Name, Name] = Field(max_length=1_000)
    environment_variables: dict[Name, Text] = Field(
        default_factory=dict, max_length=1_000
    )
    load_average_before: Amount | None = None
    load_average_after: Amount | None = None
    canary_before_sec: Amount | None = None
    canary_after_sec: Amount | None = None
    foreign_cpu_fraction: Fraction | None = Field(
        default=None, description="CPU time of other processes during the trial, 0..1"
    )
    stolen_cpu_fraction: Fraction | None = Field(
        default=None, description="CPU time given to other guests of the hypervisor"
    )
    placement: Placement


class Failure(Record):
    """Why a trial is not ok."""

    phase: Phase
    reason: Line = Field(description="one line")
    exception_type: Name | None = None
    traceback: Text | None = None


class StatusRecord(Record):
    """How a trial ended; written last, so its presence means that the trial is over."""

    schema_version: Literal[3] = 3
    trial_id: TrialId
    status: TrialStatus
    started_at: Name
    ended_at: Name
    duration_sec: Amount
    exit_code: bounds.ExitCode | None = None
    failure: Failure | None = None


class SanityCheck(Record):
    """One correctness check of a trial; if it failed, the numbers are not used."""

    name: Name
    is_passed: bool
    detail: Text


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
    protocol: Line = Field(
        default="",
        description="what else the figure depends on; two protocols share no axis",
    )


class QualityPoint(Record):
    """Quality at one point of a quality run; counts include all its steps so far."""

    num_steps: PositiveTotal
    num_examples: PositiveTotal = Field(description="steps times the global batch size")
    train_time_sec: Amount = Field(
        description="of all steps except the first, which traces; no evaluation"
    )
    num_environment_steps: Total | None = Field(
        default=None, description="of all actors so far; None without any"
    )
    quality: Metrics
    samples: FileName = Field(
        default="", description="file in the trial's directory: a picture, as PNG"
    )


class RankTimes(Record):
    """Step times of one process, in order; nothing is dropped."""

    rank: int = Field(ge=0, lt=limits.MAX_REPLICAS)
    time_to_first_step_sec: Amount
    warmup_step_time_sec: StepTimes
    step_time_sec: StepTimes
    window_start_ns: bounds.Nanoseconds = Field(
        description="CLOCK_MONOTONIC of this machine"
    )
    window_end_ns: bounds.Nanoseconds
    losses: tuple[Real, ...] = Field(
        max_length=limits.MAX_LOSSES, description="up to the first that is not finite"
    )
    peak_memory_bytes: Total


class TrialResult(Record):
    """Raw observations of a trial that completed."""

    schema_version: Literal[3] = 3
    trial_id: TrialId
    example_unit: Name
    num_parameters: Total
    global_batch_size: GlobalBatchSize
    num_measured_steps: Steps
    window_sec: Seconds = Field(description="latest start to latest end over ranks")
    ranks: tuple[RankTimes, ...] = Field(min_length=1, max_length=limits.MAX_REPLICAS)
    sanity: tuple[SanityCheck, ...] = Field(max_length=limits.MAX_CHECKS)
    quality: Metrics = Field(default=(), description="at the end")
    curve: tuple[QualityPoint, ...] = Field(
        default=(),
        max_length=limits.MAX_EVALUATIONS + 1,
        description="of a quality run",
    )
    window_metrics: Metrics = Field(
        default=(), description="rates that the program recorded in the measured window"
    )
    collectives: Text = Field(default="", description="the backend's explain() text")

    @property
    def examples_per_sec(self) -> float:
        """Throughput: examples of the global batch per second in the window."""
        return self.global_batch_size * self.num_measured_steps / self.window_sec
