"""Records of how a study is measured; ``docs/measuring.md`` explains the words."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from pydantic import Field

from results.records import limits
from results.records.machine_record import GpuUses
from results.records.record_base import (
    Amount,
    Fraction,
    Index,
    Line,
    Name,
    Nanoseconds,
    Record,
    Repeats,
    Steps,
    Total,
    TrialId,
    Word,
    optional,
)

MAX_ATTEMPTS = 3
"""Attempts at one block: a discarded block is repeated up to twice in its round."""


class Order(Word):
    """How the trials of one repetition share the machine."""

    SEQUENTIAL = "sequential"
    INTERLEAVED = "relay"


class Control(Word):
    """What a trial leaves out, to explain what the case itself costs.

    ``twin`` leaves out nothing: the same case again, whose ratio to it must include 1.
    ``input_only`` leaves out the step itself, and only reads its batches; ``no_update``
    what a step does with its gradients after they were summed. ``match`` is not timed:
    it runs the first steps, to match N replicas with one.
    """

    NONE = "none"
    AA = "twin"
    INDEPENDENT = "solo"
    NOSYNC = "nosync"
    SYNTHETIC = "synthetic"
    INPUT_ONLY = "input_only"
    NO_UPDATE = "no_update"
    MATCH = "match"


class Allocator(str, Enum):
    """What glibc does with freed memory: by its own rules, or keep all of it."""

    DEFAULT = "default"
    KEEP = "keep"


class Block(Record):
    """One block of an interleaved trial; discarded ones are kept, and count nowhere."""

    round_index: Index
    attempt: int = Field(ge=0, lt=MAX_ATTEMPTS)
    start_ns: Nanoseconds = Field(description="latest start over ranks")
    end_ns: Nanoseconds = Field(description="latest end over ranks")
    num_steps: Steps
    foreign_cpu_fraction: Fraction | None = Field(
        default=None, description="of the trial's cores, used by other processes"
    )
    stolen_cpu_fraction: Fraction | None = Field(
        default=None, description="of the trial's cores, given to other guests"
    )
    run_delay_sec: Amount | None = Field(
        default=None, description="runnable threads of the trial waited for a core"
    )
    user_sec: Amount = 0.0
    system_sec: Amount = 0.0
    minor_faults: Total = 0
    major_faults: Total = 0
    involuntary_switches: Total = 0
    num_throttled: Total | None = None
    num_retraces: Total = 0
    gpus: GpuUses = Field(default=(), description="of the trial, within the block")
    discard_reason: Line = Field(default="", description="empty if the block is valid")
    is_sustained: bool = Field(
        default=False,
        description="a stretch of a gate: longer, with the garbage collector on if"
        " both sides let it work",
    )

    @property
    def is_valid(self) -> bool:
        """Whether figures may use it."""
        return not self.discard_reason

    @property
    def load(self) -> tuple[bool, float]:
        """What disturbed it, as a key to sort by: the least first."""
        return not self.is_valid, self.others

    @property
    def others(self) -> float:
        """The fraction of its cores that others had, as far as is known."""
        return (self.foreign_cpu_fraction or 0.0) + (self.stolen_cpu_fraction or 0.0)

    @property
    def time_sec(self) -> float:
        """Duration, never zero."""
        return max((self.end_ns - self.start_ns) / 1e9, limits.MIN_SEC)


class Contrast(Record):
    """The one comparison that a study is planned for; all others are secondary."""

    first_case_id: TrialId
    second_case_id: TrialId
    text: Line = Field(description="in words, such as 'in_graph / tf_mirrored, x2'")


class GateDesign(Record):
    """What a gate judges, and when it looks; decided before anything is measured."""

    metric: Name
    baseline: Line = Field(description="in words: a revision or a study")
    delta: Annotated[float, Field(gt=0, le=1)]
    alpha: Annotated[float, Field(gt=0, lt=0.5)]
    looks: tuple[Repeats, ...] = Field(
        default=(),
        max_length=100,
        description="runs after which it may end; empty for a fixed number",
    )
    num_stretches: int = Field(
        default=0, ge=0, le=100, description="sustained, of each run"
    )
    counts: tuple[Name, ...] = Field(
        default=(),
        max_length=limits.MAX_METRICS,
        description="of steps of a workload: a rise is a regression",
    )


class Measuring(Record):
    """How long a study measures, and what for."""

    order: Order = Order.SEQUENTIAL
    minutes: Annotated[float, Field(gt=0, le=limits.MAX_SEC)] | None = Field(
        default=None,
        description="of an interleaved measurement: all runs, start-up included",
    )
    repetition_sec: Annotated[float, Field(gt=0, le=limits.MAX_SEC)] | None = Field(
        default=None, description="of one run of an interleaved measurement"
    )
    max_rounds: Steps | None = optional("of one run of an interleaved measurement")
    target: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="half width of the primary contrast to stop at"
    )
    had_target: bool = Field(
        default=False,
        description="an earlier sweep of the study had a target, which may have ended"
        " it: intervals stay widened",
    )
    primary: Contrast | None = None
    efficiency_target: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="parallel efficiency that verdicts test"
    )
    gate: GateDesign | None = optional("None of a sweep")

    @property
    def is_stopped_on_width(self) -> bool:
        """Whether the width of an interval decided how many repetitions there are."""
        return self.target is not None or self.had_target


# Figures of a trial's window that a gate compares exactly.

GRAPH_NODES: Final = "graph_nodes"
DISPATCHES: Final = "dispatches"
RETRACES: Final = "retraces"
UNITS: Final = {
    GRAPH_NODES: "nodes",
    DISPATCHES: "functions",
    RETRACES: "functions",
    "collectives": "buckets",
    "collective_bytes": "bytes",
    "variable_bytes": "bytes",
    "activation_bytes": "bytes",
}
"""Unit of each count, by its name."""
OF_PLANS: Final = (
    "collectives",
    "collective_bytes",
    "variable_bytes",
    "activation_bytes",
)
"""Those that only backends of this project know."""
FEWEST_WARMUP_STEPS: Final = 2
"""The last of these steps is counted; the first one traces, and does more."""
EXACT: Final = "exact: a count has no interval"
"""The method of a figure that is the same in each run."""


def step_count_words(name: str) -> str:
    """Returns how readers see the name of a count."""
    return name.replace("_", " ") if name in UNITS else name


# Part of a spec's identity unless at its default; two studies may differ in it.


class StepSettings(Record):
    """How a trial runs its steps."""

    # Steps that are started before their losses are read.
    steps_per_sync: Steps = 1
