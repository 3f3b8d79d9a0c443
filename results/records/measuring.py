"""Records of how a study is measured; ``docs/measuring.md`` explains the words."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from pydantic import Field

from results.records.machine_record import GpuUses
from results.records.record_base import (
    MAX_METRICS,
    MIN_SEC,
    Amount,
    Duration,
    Fraction,
    Index,
    Level,
    Line,
    Name,
    Nanoseconds,
    PositiveFraction,
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
Attempt = Annotated[int, Field(ge=0, lt=MAX_ATTEMPTS)]


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


class BlockFacts(Record):
    """What a process did and used in a block; the usage is that of ``getrusage``."""

    round_index: Index
    attempt: Attempt
    start_ns: Nanoseconds = Field(description="CLOCK_MONOTONIC, before its first step")
    end_ns: Nanoseconds = Field(description="that of its last step")
    num_steps: Steps
    user_sec: Amount = 0.0
    system_sec: Amount = 0.0
    minor_faults: Total = 0
    major_faults: Total = 0
    involuntary_switches: Total = 0
    num_retraces: Total = optional(
        "compilations within the block, which make it discarded", 0
    )


class Block(BlockFacts):
    """One block of an interleaved trial; discarded ones are kept, and count nowhere."""

    start_ns: Nanoseconds = Field(description="latest start over ranks")
    end_ns: Nanoseconds = Field(description="latest end over ranks")
    foreign_cpu_fraction: Fraction | None = optional(
        "of the trial's cores, used by other processes"
    )
    stolen_cpu_fraction: Fraction | None = optional(
        "of the trial's cores, given to other guests"
    )
    run_delay_sec: Amount | None = optional(
        "runnable threads of the trial waited for a core"
    )
    num_throttled: Total | None = None
    gpus: GpuUses = optional("of the trial, within the block", ())
    discard_reason: Line = optional("empty if the block is valid", "")
    is_sustained: bool = optional(
        "a stretch of a gate: longer, with the garbage collector on if"
        " both sides let it work",
        False,
    )

    @property
    def is_valid(self) -> bool:
        """Whether figures may use it."""
        return not self.discard_reason

    @property
    def load(self) -> tuple[bool, float]:
        """What disturbed it, as a key to sort by."""
        return not self.is_valid, self.others

    @property
    def others(self) -> float:
        """The fraction of its cores that others had, as far as is known."""
        return (self.foreign_cpu_fraction or 0.0) + (self.stolen_cpu_fraction or 0.0)

    @property
    def time_sec(self) -> float:
        """Duration, never zero."""
        return max((self.end_ns - self.start_ns) / 1e9, MIN_SEC)


class Contrast(Record):
    """The one comparison that a study is planned for; all others are secondary."""

    first_case_id: TrialId
    second_case_id: TrialId
    text: Line = Field(description="in words, such as 'in_graph / tf_mirrored, x2'")


class GateDesign(Record):
    """What a gate judges, and when it looks; decided before anything is measured."""

    metric: Name
    baseline: Line = Field(description="in words: a revision or a study")
    delta: PositiveFraction
    alpha: Level
    looks: tuple[Repeats, ...] = optional(
        "runs after which it may end; empty for a fixed number", (), max_length=100
    )
    num_stretches: int = optional("sustained, of each run", 0, ge=0, le=100)
    counts: tuple[Name, ...] = optional(
        "of steps of a workload: a rise is a regression", (), max_length=MAX_METRICS
    )


class Measuring(Record):
    """How long a study measures, and what for."""

    order: Order = Order.SEQUENTIAL
    minutes: Duration | None = optional(
        "of an interleaved measurement: all runs, start-up included"
    )
    repetition_sec: Duration | None = optional(
        "of one run of an interleaved measurement"
    )
    max_rounds: Steps | None = optional("of one run of an interleaved measurement")
    target: PositiveFraction | None = optional(
        "half width of the primary contrast to stop at"
    )
    had_target: bool = optional(
        "an earlier sweep of the study had a target, which may have ended"
        " it: intervals stay widened",
        False,
    )
    primary: Contrast | None = None
    efficiency_target: PositiveFraction | None = optional(
        "parallel efficiency that verdicts test"
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
OF_PLANS: Final = {
    "collectives": "buckets",
    "collective_bytes": "bytes",
    "variable_bytes": "bytes",
    "activation_bytes": "bytes",
}
"""Those that only backends of this project know."""
UNITS: Final = {
    GRAPH_NODES: "nodes",
    DISPATCHES: "functions",
    RETRACES: "functions",
    **OF_PLANS,
}
"""Unit of each count, by its name."""
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
