"""One requested sweep: its options, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, InstanceOf

from harness.options.notation import (
    COUNTS,
    KEY_VALUES,
    NAMES,
    PERCENTAGE,
    duration,
    some_of,
)
from harness.options.option import Option, Recorded
from harness.planning import budgets, defaults
from harness.planning.program_request import ProgramRequest
from harness.planning.settings import described_default
from harness.sources.code_digest import SourceTree
from results.records.limits import MAX_SEED
from results.records.measuring import GateDesign, StepSettings
from results.records.models import Allocator, Control, OptionValue, Order, ScalingMode
from results.records.record_base import BatchSize, Seed, Steps

MEASURED: Final = "What is measured"
DESIGN: Final = "How it is measured"
STEPS: Final = "Batches and steps"
LEARNING: Final = "What is learned"
STUDY: Final = "Study and output"

Count = Annotated[int, Field(ge=1, le=MAX_SEED)]
CONTROLS: Final = (
    Control.NOSYNC,
    Control.SOLO,
    Control.SYNTHETIC,
    Control.INPUT_ONLY,
    Control.NO_UPDATE,
)
"""Those that can be requested."""


class SweepRequest(ProgramRequest):
    """One requested sweep; None means that the default is derived."""

    workload: Annotated[
        str,
        Option(
            group=MEASURED,
            help="The workload to measure.",
            default="required, or `--command`",
        ),
    ] = ""
    backends: Annotated[
        tuple[str, ...],
        Option(group=MEASURED, kind=NAMES, help="Comma-separated names."),
    ] = defaults.BACKENDS
    replicas: Annotated[
        tuple[int, ...] | None,
        Option(
            group=MEASURED,
            kind=COUNTS,
            help="Lists and ranges: `1,2,4`, `1..8`, or `1..16x2` (geometric).",
            default="powers of two up to the cores or GPUs, at most 8, those by which"
            " the global batch is divisible",
        ),
    ] = None
    modes: Annotated[
        tuple[ScalingMode, ...],
        Option(
            group=MEASURED,
            name="mode",
            kind=some_of(tuple(ScalingMode), noun="scaling mode"),
            metavar="MODES",
            help="Scaling modes: `weak`, `strong`, or both.",
        ),
    ] = tuple(map(ScalingMode, defaults.MODES))
    preset: Annotated[
        str | None,
        Option(
            group=MEASURED,
            help="Size of the workload.",
            default="the workload's; `gpu` with `--device gpu`",
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            group=MEASURED,
            help="Data set: `digits`, `synthetic`, a TFDS name, or `folder:PATH`;"
            " `domain:task` for `d4pg`, `tensorflow_source` for `transformer`.",
            default="the preset's",
        ),
    ] = None
    options: Annotated[
        Mapping[str, OptionValue],
        Option(
            group=MEASURED,
            name="option",
            kind=KEY_VALUES,
            help="An option of the workload; can be repeated.",
        ),
    ] = Field(default_factory=dict)
    device: Annotated[
        Literal["cpu", "gpu"], Option(group=MEASURED, help="Devices of the replicas.")
    ] = defaults.DEVICE

    order: Annotated[
        Order | None,
        Option(
            group=DESIGN,
            help="`relay`: all cases are alive at once and take turns; `sequential`:"
            " one trial after the other.",
            default="`relay` on CPUs, if all cases fit into memory",
        ),
    ] = None
    repeats: Annotated[
        Count | None,
        Option(
            group=DESIGN,
            help="Repetitions of each case, in separate processes; the generations of a"
            " relay.",
            default=f"{defaults.GENERATIONS} in a relay, {defaults.REPEATS} in"
            " sequence",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            group=DESIGN,
            kind=duration("min", unit="min"),
            help="Time for a relay, start-up included; a bare number is minutes.",
            default=f"`{defaults.MINUTES:g}min`; `{defaults.MINUTES_TO_TARGET:g}min`"
            " with `--target`",
        ),
    ] = None
    max_rounds: Annotated[
        Steps | None,
        Option(
            group=DESIGN,
            name="rounds",
            help="The most rounds of each generation of a relay.",
            default=f"{defaults.MAX_ROUNDS}",
        ),
    ] = None
    target: Annotated[
        float | None,
        Option(
            group=DESIGN,
            kind=PERCENTAGE,
            help="Continue until the interval of the primary contrast is at most this"
            " wide to either side, such as `3%`; at least 5 generations.",
        ),
    ] = None
    efficiency_target: Annotated[
        float,
        Option(
            group=DESIGN,
            kind=PERCENTAGE,
            help="Parallel efficiency that the verdict tests.",
        ),
    ] = defaults.EFFICIENCY_TARGET
    allocator: Annotated[
        Allocator | None,
        Option(
            group=DESIGN,
            help="`keep`: glibc keeps freed memory; `default`: it returns large blocks"
            " to the kernel.",
            default="`keep`",
        ),
    ] = None
    controls: Annotated[
        tuple[Control, ...],
        Option(
            group=DESIGN,
            kind=some_of(CONTROLS, noun="control", all_and_none=True),
            help="Cases of the relay that show where time is lost: `nosync`, `solo`,"
            " `synthetic`, `input_only`, `no_update`, or `all`, or `none`.",
        ),
    ] = ()
    is_matched: Annotated[
        bool,
        Option(
            group=DESIGN,
            name="match",
            help="Before a number counts, match the first steps of N replicas with"
            " those of one, in a few short trials that are not timed.",
            default="yes",
        ),
    ] = True
    seed: Annotated[Seed, Option(group=DESIGN, help="Seed of the sweep.")] = (
        defaults.SEED
    )
    timeout_sec: Annotated[
        float,
        Option(
            group=DESIGN,
            name="timeout",
            kind=duration(),
            help="Time limit of one trial; a bare number is seconds.",
        ),
    ] = defaults.TIMEOUT_SEC

    per_replica_batch_size: Annotated[
        BatchSize | None,
        Option(
            group=STEPS,
            help="Examples per replica and step; constant in weak scaling.",
            default="the preset's",
        ),
    ] = None
    global_batch_size: Annotated[
        BatchSize | None,
        Option(
            group=STEPS,
            help="Examples of all replicas per step; constant in strong scaling.",
            default="the baseline's",
        ),
    ] = None
    num_warmup_steps: Annotated[
        Steps | None,
        Option(
            group=STEPS,
            help="Steps before the measured window, the first one included.",
            default="the preset's",
        ),
    ] = None
    num_measured_steps: Annotated[
        Steps | None,
        Option(
            group=STEPS,
            help="Steps in the measured window.",
            default="the preset's",
        ),
    ] = None
    settings: Annotated[
        Mapping[str, int],
        Recorded(model=StepSettings, default=described_default, group=STEPS),
    ] = Field(default_factory=dict)

    budget: Annotated[
        str | None,
        Option(
            group=LEARNING,
            metavar="AMOUNT",
            help="Training budget of each quality run: `60s`, `10min`, `500steps`,"
            " `20000examples`; `window`: quality after the measured window of each"
            " trial instead, or too (`60s,window`); `none`: no quality at all.",
            default="the preset's (`laptop`: `40s`), on the first backend only",
        ),
    ] = None
    quality_repeats: Annotated[
        Count,
        Option(
            group=LEARNING,
            help="Quality runs of each case, with different seeds.",
        ),
    ] = defaults.QUALITY_REPEATS

    @property
    def is_evaluated(self) -> bool | None:
        """Whether timed trials measure quality; None where nobody said."""
        return budgets.is_evaluated(self.budget)

    is_quality_only: bool = False  # Whether nothing but the quality runs is planned.
    # Another tree of sources, in which every case is measured as well.
    baseline: InstanceOf[SourceTree] | None = None
    # What a gate judges, and when it looks; None of a sweep.
    gate: InstanceOf[GateDesign] | None = None
