"""One requested sweep, of a workload or of a program of the user's: its options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, InstanceOf

from harness.command import program as program_lib
from harness.command.numbers import THROUGHPUT
from harness.command.program import UNIT, ForeignProgram, make
from harness.errors import ParseError, PlanError
from harness.options import kinds
from harness.options.kinds import (
    COUNTS,
    KEY_VALUES,
    NAMES,
    PERCENTAGE,
    duration,
    some_of,
)
from harness.options.option import Option, Options, declared
from harness.planning import defaults
from harness.sources.code_digest import SourceTree
from results.judging import gate_metrics
from results.records.limits import MAX_SEED
from results.records.measuring import GateDesign
from results.records.models import Allocator, Control, OptionValue, Order, ScalingMode
from results.records.program import CLIENT, WALL, WITHOUT_PATTERN
from results.records.record_base import BatchSize, Seed, Steps

_Request = TypeVar("_Request", bound="SweepRequest")

OWN: Final = "Your program, in any framework"
_OF_WORKLOADS: Final[Mapping[str, object]] = {
    "workload": "",
    "backends": defaults.BACKENDS,
    "preset": None,
    "data": None,
    "options": {},
    "budget": None,
}
"""Fields that say nothing about a command, and what they are where nothing is given."""
_OF_CLIENTS: Final[Mapping[str, object]] = {
    "minutes": None,
    "max_rounds": None,
    "target": None,
    "controls": (),
}
"""Those that say something only about one that connects, and takes turns."""
_BATCHES: Final = frozenset(("per_replica_batch_size", "global_batch_size"))
"""Placeholders by which a program has a batch."""
_OF_TRIALS: Final = {gate_metrics.EFFICIENCY.name, *gate_metrics.METRICS} - {THROUGHPUT}
"""Figures of workloads that a gate judges by their names."""


NONE: Final = "none"
WINDOW: Final = "window"  # Quality after the measured window of each trial.


def is_evaluated(budget: str | None) -> bool | None:
    """Whether trials measure quality after their windows; None where nobody said."""
    parts = [part.strip() for part in (budget or "").split(",")]
    return True if WINDOW in parts else False if parts == [NONE] else None


MEASURED: Final = "Subject"
DESIGN: Final = "Method"
STEPS: Final = "Batches and steps"
LEARNING: Final = "Learning"
STUDY: Final = "Study and output"

_STEP_COUNT: Final = kinds.kind_of(Steps)


def parse_steps(text: str, what: str) -> tuple[int | None, int | None]:
    """Returns the steps of the warm-up and of the measured window: ``10+90``."""
    parts = text.split("+")
    if len(parts) != len(("warm-up", "measured")) or not any(parts):
        raise ParseError(
            f"{what}: {kinds.shown(text)} is not WARMUP+MEASURED; write both, such as"
            " 10+90, or leave one out: 10+ or +90"
        )
    warmup, measured = (_STEP_COUNT.read(of, what) if of else None for of in parts)
    return warmup, measured


STEP_COUNTS: Final = kinds.Kind(parse_steps, metavar="WARMUP+MEASURED")
Count = Annotated[int, Field(ge=1, le=MAX_SEED)]
CONTROLS: Final = (
    *(Control.NOSYNC, Control.SOLO, Control.SYNTHETIC),
    *(Control.INPUT_ONLY, Control.NO_UPDATE),
)
"""Those that can be requested."""


class SweepRequest(Options):
    """One requested sweep; None means that the default is derived."""

    command: Annotated[
        str | None,
        Option(
            "Starts your program, in place of `--workload`, with placeholders such as"
            " `{replicas}` and `{per_replica_batch_size}`.",
            OWN,
        ),
    ] = None
    metric: Annotated[
        str | None,
        Option(
            "Where its rate is: `throughput`, `throughput_per_replica`, `step_time`,"
            " `step_time_ms`, `steps_per_sec` or `epoch_time`, and a regular expression"
            " with one group, `json:FILE:KEY` or `csv:FILE:COLUMN`; `wall`: the time of"
            " the whole command; `client`: it calls `scaling_client`.",
            OWN,
            metavar="NAME=PATTERN",
        ),
    ] = None
    counts: Annotated[
        tuple[str, ...],
        Option(
            "A number that is the same in each run, such as bytes sent; a gate compares"
            " it exactly. Can be repeated.",
            OWN,
            name="count",
            kind=kinds.TEXTS,
            metavar="NAME=PATTERN",
            default="none",
        ),
    ] = ()
    params: Annotated[
        tuple[str, ...],
        Option(
            "Values of `{NAME}` in the command, measured interleaved and compared."
            " Can be repeated.",
            OWN,
            name="param",
            kind=kinds.TEXTS,
            metavar="NAME=A,B,...",
            default="none",
        ),
    ] = ()
    unit: Annotated[
        str | None, Option("Plural of what it processes.", OWN, default=f"`{UNIT}`")
    ] = None
    program: InstanceOf[ForeignProgram] | None = None  # It, once it was looked at.
    # Where it starts, by revision; here if there is none.
    folders: Mapping[str, Path] = Field(default_factory=dict)

    workload: Annotated[
        str,
        Option(
            "The workload to measure.", MEASURED, default="required, or `--command`"
        ),
    ] = ""
    backends: Annotated[
        tuple[str, ...], Option("Comma-separated names.", MEASURED, kind=NAMES)
    ] = defaults.BACKENDS
    replicas: Annotated[
        tuple[int, ...] | None,
        Option(
            "Lists and ranges: `1,2,4`, `1..8` or `1-8`, `1..16x2` (geometric).",
            MEASURED,
            kind=COUNTS,
            default="powers of two up to the cores or GPUs, at most 8, that divide the"
            " global batch",
        ),
    ] = None
    modes: Annotated[
        tuple[ScalingMode, ...],
        Option(
            "Scaling modes: `weak`, `strong`, or both.",
            MEASURED,
            name="mode",
            kind=some_of(tuple(ScalingMode), noun="scaling mode"),
            metavar="MODES",
        ),
    ] = tuple(map(ScalingMode, defaults.MODES))
    preset: Annotated[
        str | None,
        Option(
            "Size of the workload.",
            MEASURED,
            default="the workload's; `gpu` with `--device gpu`",
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            "Data set: `digits`, `synthetic`, a TFDS name, or `folder:PATH`;"
            " `domain:task` for `d4pg`, `tensorflow_source` for `transformer`.",
            MEASURED,
            default="the preset's",
        ),
    ] = None
    options: Annotated[
        Mapping[str, OptionValue],
        Option(
            "An option of the workload; can be repeated.",
            MEASURED,
            name="option",
            kind=KEY_VALUES,
        ),
    ] = Field(default_factory=dict)
    device: Annotated[
        Literal["cpu", "gpu"], Option("Devices of the replicas.", MEASURED)
    ] = defaults.DEVICE

    order: Annotated[
        Order | None,
        Option(
            "`interleaved`: cases take turns; `sequential`: one trial after the other.",
            DESIGN,
            default="`interleaved` on CPUs, if all cases fit into memory",
        ),
    ] = None
    repeats: Annotated[
        Count | None,
        Option(
            "Runs of each case, in fresh processes.",
            DESIGN,
            default=f"{defaults.GENERATIONS}; {defaults.REPEATS} in sequence",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            "Time for an interleaved measurement, start-up included.",
            DESIGN,
            name="time-budget",
            kind=duration("min"),
            default=f"`{defaults.MINUTES:g}min`; `{defaults.MINUTES_TO_TARGET:g}min`"
            " with `--target`",
        ),
    ] = None
    max_rounds: Annotated[
        Steps | None,
        Option(
            "The most rounds of each interleaved run.",
            DESIGN,
            name="rounds",
            default=f"{defaults.MAX_ROUNDS}",
        ),
    ] = None
    target: Annotated[
        float | None,
        Option(
            "Measure until the primary ratio is known within this, such as `3%`; at"
            " least 5 runs.",
            DESIGN,
            kind=PERCENTAGE,
        ),
    ] = None
    efficiency_target: Annotated[
        float,
        Option("Parallel efficiency that the verdict tests.", DESIGN, kind=PERCENTAGE),
    ] = defaults.EFFICIENCY_TARGET
    allocator: Annotated[
        Allocator | None,
        Option(
            "`keep`: glibc keeps freed memory; `default`: returns large blocks.",
            DESIGN,
            default="`keep`",
        ),
    ] = None
    controls: Annotated[
        tuple[Control, ...],
        Option(
            "Cases that show where time is lost: `nosync`, `independent`, `synthetic`,"
            " `input_only`, `no_update`, `all` or `none`.",
            DESIGN,
            kind=some_of(CONTROLS, noun="control", all_and_none=True),
        ),
    ] = ()
    is_matched: Annotated[
        bool,
        Option(
            "First check in short trials that N replicas compute what one does.",
            DESIGN,
            name="match",
            default="yes",
        ),
    ] = True
    seed: Annotated[Seed, Option("Seed of the sweep.", DESIGN)] = defaults.SEED
    timeout_sec: Annotated[
        float,
        Option("Time limit of one trial.", DESIGN, name="timeout", kind=duration()),
    ] = defaults.TIMEOUT_SEC

    per_replica_batch_size: Annotated[
        BatchSize | None,
        Option(
            "Examples per replica and step; constant in weak scaling.",
            STEPS,
            default="the preset's",
        ),
    ] = None
    global_batch_size: Annotated[
        BatchSize | None,
        Option(
            "Examples of all replicas per step; constant in strong scaling.",
            STEPS,
            default="the baseline's",
        ),
    ] = None
    steps: Annotated[
        tuple[int | None, int | None],
        Option(
            "Warm-up and measured steps: `10+90`, `10+` or `+90`.",
            STEPS,
            kind=STEP_COUNTS,
            default="the preset's",
        ),
    ] = (None, None)
    steps_per_sync: Annotated[
        Steps | None,
        Option(
            "Steps that are queued before their losses are read; they share their"
            " time.",
            STEPS,
            default=f"1; {defaults.STEPS_PER_SYNC_ON_GPUS} on GPUs, but for `d4pg`",
        ),
    ] = None

    budget: Annotated[
        str | None,
        Option(
            "Training budget of each quality run: `60s`, `10min`, `500steps`,"
            " `20000examples`; `window`: quality after each measured window;"
            " `60s,window`: both; `none`.",
            LEARNING,
            metavar="AMOUNT",
            default="the preset's (`laptop`: `40s`), on the first backend only",
        ),
    ] = None
    quality_repeats: Annotated[
        Count, Option("Quality runs of each case, with different seeds.", LEARNING)
    ] = defaults.QUALITY_REPEATS

    @property
    def num_warmup_steps(self) -> int | None:
        """Steps before the measured window; None where nobody said."""
        return self.steps[0]

    @property
    def num_measured_steps(self) -> int | None:
        """Steps in the measured window; None where nobody said."""
        return self.steps[1]

    @property
    def is_evaluated(self) -> bool | None:
        """Whether timed trials measure quality; None where nobody said."""
        return is_evaluated(self.budget)

    is_quality_only: bool = False  # Whether nothing but the quality runs is planned.
    # Another tree of sources, in which every case is measured as well.
    baseline: InstanceOf[SourceTree] | None = None
    # What a gate judges, and when it looks; None of a sweep.
    gate: InstanceOf[GateDesign] | None = None


def resolved(request: _Request, folder: Path) -> _Request:
    """Returns a request with its program, or one for a workload as it is."""
    if request.command is None:
        _check_workload(request)
        return request
    is_client = request.metric == CLIENT
    variants = program_lib.parse_params(request.params, request.command)
    params = program_lib.params_of(variants)
    named = program_lib.names_in(request.command, params)
    has_batch = is_client or not _BATCHES.isdisjoint(named)
    has_size = request.per_replica_batch_size or request.global_batch_size
    if not (has_batch or has_size):
        # Each replica has one unit of work, or they divide what all numbers divide.
        is_weak = ScalingMode.WEAK in request.modes
        name = "per_replica_batch_size" if is_weak else "global_batch_size"
        work = 1 if is_weak else math.lcm(*(request.replicas or (1,)))
        request = request.model_copy(update={name: work})
    assert request.command is not None
    _check(request, _OF_WORKLOADS if is_client else {**_OF_WORKLOADS, **_OF_CLIENTS})
    if request.metric in _OF_TRIALS:
        raise PlanError(
            f"--metric {request.metric} with --command: of your program only its"
            " throughput is judged; say where it prints that, such as --metric"
            " 'throughput=samples/s: ([0-9.]+)', or --metric client if it connects by"
            " scaling_client; 'report' shows its efficiency"
        )
    if request.metric is None or not (
        request.metric in WITHOUT_PATTERN or "=" in request.metric
    ):
        raise PlanError(
            f"--command {request.command!r} without --metric NAME=PATTERN: say where it"
            " prints how fast it is, such as --metric 'throughput=samples/s:"
            " ([0-9.]+)', --metric wall for the time of the whole command, or --metric"
            " client if it connects by scaling_client"
        )
    if request.metric == WALL and request.steps != (None, None):
        raise PlanError(
            "--steps has no effect with --metric wall, which times whole runs of the"
            " command; leave it out, or put it into the command"
        )
    if request.per_replica_batch_size is None and request.global_batch_size is None:
        raise PlanError(
            f"--command {request.command!r} without --per-replica-batch-size: say how"
            " many examples each replica processes per step"
        )
    if request.replicas is None:
        raise PlanError(
            f"--command {request.command!r} without --replicas: say which numbers of"
            " replicas are measured, such as --replicas 1,2"
        )
    if request.unit is not None and not request.unit.strip():
        raise PlanError(
            f"--unit {request.unit!r} is empty; name in the plural what the program"
            f" processes, such as cells, or leave it out for {UNIT!r}"
        )
    made = make(
        command=request.command,
        metric_text=request.metric,
        unit=request.unit or UNIT,
        count_texts=request.counts,
        variants=variants,
        setup=getattr(request, "setup", None) or "",
        replicas=request.replicas,
        folder=folder,
        left_out=[getattr(request, "runs_dir", folder / defaults.RUNS_DIR)],
    )
    if not has_batch and len(request.modes) > 1 and len(request.replicas) > 1:
        modes = ",".join(mode.value for mode in request.modes)
        raise PlanError(
            f"--mode {modes} with --command {request.command!r}, which has neither"
            " {per_replica_batch_size} nor {global_batch_size}: both modes would start"
            " the same program; write one where the program takes its batch, or pass"
            " --mode strong (the replicas divide the work) or --mode weak (each has its"
            " own)"
        )
    update: dict[str, Any] = {
        "program": made,
        "workload": made.name,
        "backends": (made.name,),
        "order": request.order if is_client else Order.SEQUENTIAL,
        "allocator": request.allocator or Allocator.DEFAULT,
        "budget": WINDOW if request.is_evaluated else NONE,
    }
    return request.model_copy(update=update)


def _check_workload(request: SweepRequest) -> None:
    """Raises if no workload is named, or something is that only a command can have."""
    given = {"metric": request.metric, "unit": request.unit}
    given["count"] = " ".join(request.counts) or None
    given["param"] = " ".join(request.params) or None
    for option in declared(type(request)):  # those of a gate can say how it judges
        value = given.get(option.name) if option.group == OWN else None
        if value is not None:
            raise PlanError(
                f"--{option.name} {value!r} has no effect without --command; add the"
                " command of your program"
            )
    if not request.workload:
        raise PlanError(
            "nothing to measure: give --command with your program, or"
            " --workload with one that 'list workloads' shows"
        )


def _check(request: SweepRequest, excluded: Mapping[str, object]) -> None:
    """Raises if something is given that a command cannot have."""
    fields = type(request).model_fields
    is_client = request.metric == CLIENT
    for name in excluded:
        value, nothing = getattr(request, name), excluded[name]
        if name == "backends":  # those of a gate are others
            nothing = fields[name].default
        is_window = name == "budget" and value == WINDOW
        if (name == "budget" and value == NONE) or (is_window and is_client):
            continue
        if value != nothing:
            options = declared(type(request))
            (spelling,) = (of.spelling for of in options if of.field == name)
            raise PlanError(
                f"{spelling} has no effect with --command, whose program has its own;"
                " leave it out, or put it into the command"
                + " (one that connects has it: --metric client)"
                * (name in _OF_CLIENTS or is_window)
            )
    if request.order is Order.RELAY and request.metric != CLIENT:
        raise PlanError(
            "--order interleaved with --command: a command cannot take turns, so whole "
            "trials alternate; leave --order out, or let the program connect by"
            " scaling_client and give --metric client"
        )
    if is_client and request.counts:
        raise PlanError(
            f"--count {request.counts[0]!r} has no effect with --metric client, which"
            " does not read what else the program prints; count in a sweep or gate with"
            " --metric NAME=PATTERN"
        )
    if Control.SOLO in request.controls:
        raise PlanError(
            "--controls independent with --command: only workloads of this project can "
            "run as programs that know nothing of each other; use nosync, which leaves "
            "out the communication"
        )
    if request.steps_per_sync not in (None, 1):
        raise PlanError(
            "--steps-per-sync has no effect with --command, whose program has its own;"
            " leave it out, or put it into the command"
        )


def judged_metric(metric: str, command: str | None) -> str:
    """Returns what a gate judges: of a program of the user's always its throughput."""
    is_of_program = "=" in metric or (metric in WITHOUT_PATTERN and command is not None)
    return THROUGHPUT if is_of_program else metric
