"""Records of how a study is measured, and on what machine.

``docs/measuring.md`` explains the words.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from results.records.record_base import (
    MAX_METRICS,
    MAX_REPLICAS,
    MIN_SEC,
    Amount,
    Cores,
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
    Text,
    Total,
    TrialId,
    Word,
    mapping,
    optional,
)

# The state of the machine that a trial ran on, as far as it moves performance.

VOIDING_REASONS = frozenset(
    {"hardware slowdown", "heat", "heat (hardware)", "power brake"}
)
"""Reasons for a lower clock that the machine is to blame for. A power limit is none:
under full load most GPUs run at theirs."""


class GpuUse(Record):
    """One GPU over a measured window or a block. None: the driver did not say."""

    index: Index = Field(description="its number for the driver")
    num_samples: Total = Field(description="readings that the figures are taken from")
    clock_mhz: Amount | None = optional("of the multiprocessors, mean over readings")
    lowest_clock_mhz: Amount | None = None
    memory_clock_mhz: Amount | None = optional("mean over readings")
    power_watts: Amount | None = optional("mean over readings")
    temperature_celsius: Amount | None = optional("of the chip, the highest reading")
    slowed_by: Annotated[tuple[Name, ...], Field(max_length=64)] = optional(
        "why its clock was lowered in any reading", ()
    )
    energy_joules: Amount | None = optional("between the first and the last reading")
    watched_sec: Amount = optional("between the first and the last reading", 0.0)
    num_foreign_processes: Total | None = optional(
        "that had a context on it; the most in one reading"
    )
    faults: tuple[Name, ...] = optional(
        "what the driver said where it could not read it, and errors of its"
        " memory that appeared",
        (),
        max_length=8,
        exclude_if=operator.not_,
    )
    product_tflops: Amount | None = optional(
        "TFLOP/s of a bfloat16 matrix product before the warm-up steps"
    )

    @property
    def discard_reason(self) -> str:
        """Why nothing measured on it counts, as one phrase; empty if it does."""
        if self.faults:
            return self.faults[0]
        if self.num_foreign_processes:
            return others_text(self.num_foreign_processes, self.index)
        causes = [reason for reason in self.slowed_by if reason in VOIDING_REASONS]
        if causes:
            return (
                f"the clock of GPU {self.index} was lowered by {' and '.join(causes)}"
            )
        return ""


def unread_text(index: int, said: str) -> str:
    """Says that the driver could not read a GPU."""
    return f"GPU {index} could not be read ({said}): unknown who used it"


def memory_text(count: int, index: int) -> str:
    """Says that memory of a GPU has lost what was in it."""
    errors = (
        "1 uncorrected ECC error" if count == 1 else f"{count} uncorrected ECC errors"
    )
    return f"{errors} appeared on GPU {index}"


def others_text(count: int, index: int) -> str:
    """Says that other processes used a GPU."""
    others = "1 other process" if count == 1 else f"{count} other processes"
    return f"{others} used GPU {index}"


GpuUses = Annotated[
    tuple[GpuUse, ...], Field(max_length=MAX_REPLICAS, exclude_if=operator.not_)
]
"""Stored where there are some: records of trials on CPUs are as they were before GPUs
were watched, and sources of older revisions, which reject unknown fields, read them."""


def with_products(
    uses: Sequence[GpuUse], tflops: Sequence[float]
) -> tuple[GpuUse, ...]:
    """Returns what a trial's GPUs did, with the rates of a matrix product on them."""
    if len(tflops) != len(uses):
        return tuple(uses)
    return tuple(
        use.model_copy(update={"product_tflops": rate})
        for use, rate in zip(uses, tflops, strict=True)
    )


def discard_reason(uses: Sequence[GpuUse]) -> str:
    """Returns why the first of the GPUs to blame makes a figure discarded, or ""."""
    return next((use.discard_reason for use in uses if use.discard_reason), "")


def joules_per_example(uses: Sequence[GpuUse], examples_per_sec: float) -> float | None:
    """Returns the energy of all GPUs per example; None where one did not say."""
    watts = 0.0
    for use in uses:
        if use.energy_joules is None or not use.watched_sec:
            return None
        watts += use.energy_joules / use.watched_sec
    return watts / examples_per_sec if uses else None


Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]

_SHORT_COMMIT: Final = 12


class MachineState(Record):
    """Settings of kernel and firmware, and the source code. None: cannot be read."""

    glibc_version: Name | None = None
    transparent_huge_pages: Name | None = optional("always, madvise or never")
    cpu_governor: Name | None = optional(
        "of the trial's cores; joined by + where they differ"
    )
    is_boost_enabled: bool | None = optional(
        "whether cores may exceed their base clock"
    )
    is_smt_active: bool | None = optional("whether cores run two threads at once")
    num_numa_nodes: Cores | None = None
    gpu_driver: Name | None = None
    container: Name | None = optional(
        "what it ran in, and the id of the image where it is known"
    )
    git_commit: Commit | None = optional("of the source tree; None outside of git")
    is_source_modified: bool | None = optional(
        "whether Python files differ from that commit"
    )

    def without_code(self) -> dict[str, Any]:
        """Returns the fields that say where was measured: no code, and no image."""
        left_out = {"git_commit", "is_source_modified", "container"}
        return self.model_dump(mode="json", exclude=left_out)

    @property
    def commit_text(self) -> str:
        """The commit in words, abbreviated; empty outside of git."""
        if self.git_commit is None:
            return ""
        changes = " with changes" if self.is_source_modified else ""
        return f"{self.git_commit[:_SHORT_COMMIT]}{changes}"


class GpuSettings(Record):
    """One GPU of a trial. None: the driver did not say."""

    index: Index = Field(description="its number for the driver")
    power_limit_watts: Amount | None = optional("enforced now")
    is_persistent: bool | None = optional(
        "whether the driver stays loaded without users"
    )
    is_ecc_enabled: bool | None = optional("whether its memory corrects errors")
    num_corrected_errors: Total | None = optional("of its memory, since the last reset")
    num_uncorrected_errors: Total | None = optional(
        "of its memory, since the last reset"
    )
    pcie_generation: Total | None = optional(
        "the highest that GPU and slot have; idle, it is less"
    )
    pcie_width: Total | None = optional("lanes in use")
    num_nvlinks: Total | None = optional("that are active")
    paths: Annotated[tuple[Name, ...], Field(max_length=MAX_REPLICAS)] = optional(
        "to each GPU of the trial, in their order, as 'nvidia-smi topo -m'"
        " names them: X itself, NV18 over 18 links, PIX, PXB, PHB, NODE, SYS; ?",
        (),
    )


CpuSet = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MAX_REPLICAS)], ...],
    Field(max_length=MAX_REPLICAS),
]


class Placement(Record):
    """Cores and threads of a trial's processes."""

    cpusets: tuple[CpuSet, ...] = Field(
        max_length=2 * MAX_REPLICAS,
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

    schema_version: Literal[6] = 6
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
    environment_variables: dict[Name, Text] = mapping()
    load_average_before: Amount | None = None
    load_average_after: Amount | None = None
    canary_before_sec: Amount | None = None
    canary_after_sec: Amount | None = None
    foreign_cpu_fraction: Fraction | None = optional(
        "CPU time of other processes during the trial, 0..1"
    )
    stolen_cpu_fraction: Fraction | None = optional(
        "CPU time given to other guests of the hypervisor"
    )
    gpu_uses: GpuUses = optional("of the trial's GPUs, over the measured window", ())
    gpu_settings: tuple[GpuSettings, ...] = optional(
        "of the trial's GPUs, before it started",
        (),
        max_length=MAX_REPLICAS,
        exclude_if=operator.not_,
    )
    nccl_version: Name | None = optional(
        "that its processes had loaded; several are joined by '+'",
        None,
        exclude_if=operator.not_,
    )
    machine_state: MachineState | None = None
    placement: Placement

    @property
    def machine_facts(self) -> dict[str, Any]:
        """What is the same on machines whose figures can be compared; no code."""
        state = self.machine_state
        return {
            "cpu_model": self.cpu_model,
            "num_logical_cores": self.num_logical_cores,
            "memory_gib": round(self.memory_bytes / 2**30),
            # Models only: trials on one and on eight of them are of one machine.
            "gpus": sorted(set(self.gpus)),
            "kernel": self.kernel,
            "python": self.python_version,
            "packages": self.packages,
            "num_available_cores": self.placement.num_available_cores,
            "cgroup_quota_cores": self.placement.cgroup_quota_cores,
            "state": None if state is None else state.without_code(),
        }

    @property
    def machine_name(self) -> str:
        """The machine in words: its processor, cores and GPUs."""
        cores = f"{self.placement.num_available_cores} cores"
        return ", ".join([self.cpu_model, cores, *sorted(set(self.gpus))])


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
