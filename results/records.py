"""The records of one study, as they stand on disk.

History of ``SCHEMA_VERSION``:

1. First version.
2. Quality runs: ``TrialSpec.budget`` and ``TrialResult.curve``;
   ``QualityMetric.protocol``.
3. ``TrialResult.window_metrics`` and ``QualityPoint.num_environment_steps``.

Every record is immutable, refuses unknown fields and non-finite numbers, and carries
its version. Names and units follow ``docs/glossary.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 3

OptionValue = bool | int | float | str


class Record(BaseModel):
    """Base of all records: frozen, closed, finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScalingMode(str, Enum):
    """How work grows with replicas: weak grows it, strong keeps it fixed."""

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
    """What a quality run may use up; seconds are those of its training steps."""

    SECONDS = "seconds"
    STEPS = "steps"
    EXAMPLES = "examples"


class Budget(Record):
    """How long a quality run trains, and how often its quality is measured."""

    amount: float = Field(gt=0)
    unit: BudgetUnit
    num_evaluations: int = Field(ge=1, description="evenly spread, the last at the end")

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit.value}"


class TrialSpec(Record):
    """What one trial runs; its content hash is the trial's identity.

    A case is everything but ``repetition_index`` and ``seed``. The scaling mode is not
    part of it: the baseline with one replica serves weak and strong scaling alike. A
    trial with a budget is a quality run: after its measured window it trains on.
    """

    schema_version: Literal[3] = 3
    workload: str
    workload_version: str
    code_digest: str = Field(description="digest of the code that is measured")
    preset: str
    data: str
    backend: str
    device: Literal["cpu", "gpu"] = "cpu"
    num_replicas: int = Field(ge=1)
    per_replica_batch_size: int = Field(ge=1)
    global_batch_size: int = Field(ge=1)
    cores_per_replica: int = Field(ge=1)
    num_warmup_steps: int = Field(ge=1)
    num_measured_steps: int = Field(ge=1)
    is_evaluated: bool = Field(description="whether held-out quality is measured")
    budget: Budget | None = None
    options: dict[str, OptionValue] = Field(default_factory=dict)
    repetition_index: int = Field(ge=0)
    seed: int = Field(ge=0)


class PlannedTrial(Record):
    """One trial of a plan and the scaling modes that its case serves."""

    trial_id: str
    case_id: str
    modes: tuple[ScalingMode, ...]
    spec: TrialSpec


class Plan(Record):
    """The trials of a study, in execution order."""

    schema_version: Literal[3] = 3
    study: str
    created_at: str = Field(description="RFC 3339, UTC")
    command: tuple[str, ...]
    baseline_num_replicas: int = Field(ge=1)
    repeats: int = Field(ge=1)
    seed: int = Field(ge=0)
    timeout_sec: float = Field(gt=0)
    data_dir: str | None = Field(
        default=None, description="where TFDS sets are, if not where TFDS looks"
    )
    trials: tuple[PlannedTrial, ...]


class Placement(Record):
    """Which cores and threads a trial's processes were given."""

    cpusets: tuple[tuple[int, ...], ...] = Field(
        description="per process, disjoint where processes run replicas"
    )
    cores_per_replica: int = Field(ge=1)
    num_intra_op_threads: int = Field(ge=1)
    num_inter_op_threads: int = Field(ge=1)
    num_available_cores: int = Field(ge=1)
    cgroup_quota_cores: float | None = None
    is_oversubscribed: bool
    device_sharing: Literal["exclusive", "shared"]


class Environment(Record):
    """Facts about the machine and the software of one trial; no host name."""

    schema_version: Literal[3] = 3
    fingerprint: str = Field(description="hash of the facts that must match to compare")
    cpu_model: str
    num_physical_cores: int | None
    num_logical_cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    kernel: str
    python_version: str
    packages: dict[str, str]
    environment_variables: dict[str, str] = Field(default_factory=dict)
    load_average_before: float | None = None
    load_average_after: float | None = None
    canary_before_sec: float | None = None
    canary_after_sec: float | None = None
    foreign_cpu_fraction: float | None = Field(
        default=None, description="CPU time of other processes during the trial, 0..1"
    )
    stolen_cpu_fraction: float | None = Field(
        default=None, description="CPU time given to other guests of the hypervisor"
    )
    placement: Placement


class Failure(Record):
    """Why a trial is not ok."""

    phase: Phase
    reason: str = Field(description="one line")
    exception_type: str | None = None
    traceback: str | None = None


class StatusRecord(Record):
    """How a trial ended; written last, so its presence means that the trial is over."""

    schema_version: Literal[3] = 3
    trial_id: str
    status: TrialStatus
    started_at: str
    ended_at: str
    duration_sec: float = Field(ge=0)
    exit_code: int | None = None
    failure: Failure | None = None


class SanityCheck(Record):
    """One correctness gate of a trial; a failed one voids its numbers."""

    name: str
    is_passed: bool
    detail: str


class QualityMetric(Record):
    """One learning-quality figure with its count and interval."""

    name: str
    value: float
    unit: str
    num_examples: int = Field(ge=1, description="n")
    low: float
    high: float
    confidence: float = 0.95
    method: str
    protocol: str = Field(
        default="",
        description="what else the figure depends on; two protocols share no axis",
    )


class QualityPoint(Record):
    """Quality at one moment of a quality run; all its steps so far count."""

    num_steps: int = Field(ge=1)
    num_examples: int = Field(ge=1, description="steps times the global batch size")
    train_time_sec: float = Field(
        ge=0, description="of the steps but the first, which traces; no evaluation"
    )
    num_environment_steps: int | None = Field(
        default=None, ge=0, description="of all actors so far; None without any"
    )
    quality: tuple[QualityMetric, ...]
    samples: str = Field(
        default="", description="file in the trial's directory: a picture, as PNG"
    )


class RankTimes(Record):
    """Step times of one process, in order; nothing is dropped."""

    rank: int = Field(ge=0)
    time_to_first_step_sec: float = Field(ge=0)
    warmup_step_time_sec: tuple[float, ...]
    step_time_sec: tuple[float, ...]
    window_start_ns: int = Field(description="CLOCK_MONOTONIC of this machine")
    window_end_ns: int
    losses: tuple[float, ...]
    peak_memory_bytes: int = Field(ge=0)


class TrialResult(Record):
    """Raw observations of a trial that ran to its end."""

    schema_version: Literal[3] = 3
    trial_id: str
    example_unit: str
    num_parameters: int = Field(ge=0)
    global_batch_size: int = Field(ge=1)
    num_measured_steps: int = Field(ge=1)
    window_sec: float = Field(gt=0, description="latest start to latest end over ranks")
    ranks: tuple[RankTimes, ...]
    sanity: tuple[SanityCheck, ...]
    quality: tuple[QualityMetric, ...] = Field(default=(), description="at the end")
    curve: tuple[QualityPoint, ...] = Field(default=(), description="of a quality run")
    window_metrics: tuple[QualityMetric, ...] = Field(
        default=(), description="what the program counted in the measured window"
    )
    collectives: str = Field(default="", description="the backend's explain() text")

    @property
    def examples_per_sec(self) -> float:
        """Throughput: examples of the global batch per second in the window."""
        return self.global_batch_size * self.num_measured_steps / self.window_sec
