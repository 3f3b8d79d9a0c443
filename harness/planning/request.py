"""One requested sweep, of a workload or of a program of the user's: its options."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, InstanceOf

from harness.command import program as program_lib
from harness.command.numbers import THROUGHPUT
from harness.command.program import UNIT, ForeignProgram, make
from harness.errors import ParseError, PlanError
from harness.options import kinds
from harness.options.option import Option, Options, declared, option
from harness.planning import defaults
from harness.sources.code_digest import SourceTree
from results.judging import gate_metrics
from results.records.measuring import GateDesign
from results.records.models import Allocator, Control, OptionValue, Order, ScalingMode
from results.records.program import CLIENT, WALL, WITHOUT_PATTERN, Program
from results.records.record_base import MAX_SEED, BatchSize, Seed, Steps
from results.store.studies import DATA, GLOBAL, MOST_VALUES, PER_REPLICA

_Request = TypeVar("_Request", bound="SweepRequest")

OWN: Final = "Your program, in any framework"
_OF_WORKLOADS: Final = (
    *("workload", "backends", "preset", "data", "options", "budget", "steps_per_sync"),
)
"""Fields that say nothing about a command."""
_OF_COMMANDS: Final = ("metric", "counts", "params", "unit")
_OF_CLIENTS: Final = ("minutes", "max_rounds", "target", "controls")
"""Those that say something only about one that connects, and takes turns."""
_BATCHES: Final = frozenset(("per_replica_batch_size", "global_batch_size"))
"""Placeholders by which a program has a batch."""
_OF_TRIALS: Final = {gate_metrics.EFFICIENCY.name, *gate_metrics.METRICS} - {THROUGHPUT}
"""Figures of workloads that a gate judges by their names."""


RUNS_DIR: Final = Path(defaults.RUNS_DIR)
NONE: Final = "none"
WINDOW: Final = "window"  # Quality after the measured window of each trial.


def is_evaluated(budget: str | None) -> bool | None:
    parts = [part.strip() for part in (budget or "").split(",")]
    return True if WINDOW in parts else False if parts == [NONE] else None


MEASURED: Final = "Subject"
DESIGN: Final = "Method"
STEPS: Final = "Batches and steps"
LEARNING: Final = "Learning"
STUDY: Final = "Study and output"


def complete_study(params: Mapping[str, Any], incomplete: str) -> list[str]:
    """Returns the studies below ``--runs-dir`` whose names begin like this."""
    try:
        (*_, runs_dir) = params.get("runs_dir") or (RUNS_DIR,)
        plans = sorted(Path(runs_dir).glob("*/plan.json"))
    except OSError:  # nothing to complete; the subcommand itself says what is wrong
        return []
    names = [path.parent.name for path in plans]
    return [name for name in names if name.startswith(incomplete)]


RunsDir = Annotated[Path, Option("Directory of the studies.", STUDY)]
IsJson = Annotated[
    bool, Option("Print data as JSON on stdout.", STUDY, name="json", is_key=False)
]
StudyArgument = Annotated[str, Option(is_argument=True, complete=complete_study)]
StudyArguments = Annotated[
    tuple[str, ...],
    Option(
        is_argument=True, kind=kinds.TEXTS, complete=complete_study, metavar="STUDY..."
    ),
]

_STEP_COUNT: Final = kinds.kind_of(Steps)


def parse_steps(text: str, what: str) -> tuple[int | None, int | None]:
    parts = text.split("+")
    if len(parts) != len(("warm-up", "measured")) or not any(parts):
        raise ParseError(
            f"{what}: {kinds.shown(text)} is not WARMUP+MEASURED; write both, such as"
            " 10+90, or leave one out: 10+ or +90"
        )
    warmup, measured = (
        _STEP_COUNT.read(each, what) if each else None for each in parts
    )
    return warmup, measured


STEP_COUNTS: Final = kinds.Kind(parse_steps, metavar="WARMUP+MEASURED")
Count = Annotated[int, Field(ge=1, le=MAX_SEED)]
CONTROLS: Final = (
    *(Control.NOSYNC, Control.INDEPENDENT, Control.SYNTHETIC),
    *(Control.INPUT_ONLY, Control.NO_UPDATE),
)
"""Those that can be requested."""


class SweepRequest(Options):
    command: str | None = option(
        None,
        "Starts your program, in place of `--workload`, with placeholders such as"
        " `{replicas}` and `{per_replica_batch_size}`.",
        OWN,
    )
    metric: str | None = option(
        None,
        "Where its rate is: `throughput`, `throughput_per_replica`, `step_time`,"
        " `step_time_ms`, `steps_per_sec` or `epoch_time`, and a regular expression"
        " with one group, `json:FILE:KEY` or `csv:FILE:COLUMN`; `wall`: the time of"
        " the whole command; `client`: it calls `scaling_client`.",
        metavar="NAME=PATTERN",
    )
    counts: tuple[str, ...] = option(
        (),
        "A number that is the same in each run, such as bytes sent; a gate compares"
        " it exactly. Can be repeated.",
        name="count",
        kind=kinds.TEXTS,
        metavar="NAME=PATTERN",
        shown="none",
    )
    params: tuple[str, ...] = option(
        (),
        "Values of `{NAME}` in the command, measured interleaved and compared."
        " Can be repeated.",
        OWN,
        name="param",
        kind=kinds.TEXTS,
        metavar="NAME=A,B,...",
        shown="none",
    )
    unit: str | None = option(None, "Plural of what it processes.", shown=f"`{UNIT}`")
    program: InstanceOf[ForeignProgram] | None = None  # It, once it was looked at.
    # Where it starts, by revision; here if there is none.
    folders: Mapping[str, Path] = Field(default_factory=dict)

    workload: str = option(
        "", "The workload to measure.", MEASURED, shown="required, or `--command`"
    )
    backends: tuple[str, ...] = option(
        ("in_graph", "tf_mirrored"), "Comma-separated names.", kind=kinds.NAMES
    )
    replicas: tuple[int, ...] | None = option(
        None,
        "Lists and ranges: `1,2,4`, `1..8` or `1-8`, `1..16x2` (geometric).",
        kind=kinds.COUNTS,
        shown="powers of two up to the cores or GPUs, at most 8, that divide the"
        " global batch",
    )
    modes: tuple[ScalingMode, ...] = option(
        (ScalingMode.WEAK, ScalingMode.STRONG),
        "Scaling modes: `weak`, `strong`, or both.",
        name="mode",
        kind=kinds.some_of(tuple(ScalingMode), noun="scaling mode"),
        metavar="MODES",
    )
    preset: str | None = option(
        None, "Size of the workload.", shown="the workload's; `gpu` with `--device gpu`"
    )
    data: str | None = option(
        None,
        "Data set: `digits`, `synthetic`, a TFDS name, or `folder:PATH`;"
        " `domain:task` for `d4pg`, `tensorflow_source` for `transformer`.",
        shown="the preset's",
    )
    options: Mapping[str, OptionValue] = option(
        {},
        "An option of the workload; can be repeated.",
        name="option",
        kind=kinds.KEY_VALUES,
    )
    device: Literal["cpu", "gpu"] = option("cpu", "Devices of the replicas.")

    order: Order | None = option(
        None,
        "`interleaved`: cases take turns; `sequential`: one trial after the other.",
        DESIGN,
        shown="`interleaved` on CPUs, if all cases fit into memory",
    )
    repeats: Count | None = option(
        None,
        "Runs of each case, in fresh processes.",
        shown=f"{defaults.REPETITIONS}; {defaults.REPEATS} in sequence",
    )
    minutes: float | None = option(
        None,
        "The most time for an interleaved measurement, start-up included.",
        name="time-budget",
        kind=kinds.duration("min"),
        shown=f"`{defaults.MINUTES:g}min`; `{defaults.MINUTES_TO_TARGET:g}min`"
        " with `--target`, or in a gate without `--repeats`",
    )
    max_rounds: Steps | None = option(
        None,
        "The most rounds of each interleaved run.",
        name="rounds",
        shown=f"{defaults.MAX_ROUNDS}",
        is_setting=True,
    )
    target: float | None = option(
        None,
        "Measure until the primary ratio is known within this, such as `3%`; at"
        " least 5 runs.",
        kind=kinds.PERCENTAGE,
    )
    efficiency_target: float = option(
        0.8,
        "Parallel efficiency that the verdict tests.",
        kind=kinds.PERCENTAGE,
        is_setting=True,
    )
    allocator: Allocator | None = option(
        None,
        "`keep`: glibc keeps freed memory; `default`: returns large blocks.",
        shown="`keep`",
        is_setting=True,
    )
    controls: tuple[Control, ...] = option(
        (),
        "Cases that show where time is lost: `nosync`, `independent`, `synthetic`,"
        " `input_only`, `no_update`, `all` or `none`.",
        kind=kinds.some_of(CONTROLS, noun="control", all_and_none=True),
    )
    is_matched: bool = option(
        True,
        "First check in short trials that N replicas compute what one does.",
        name="match",
        shown="yes",
    )
    seed: Seed = option(0, "Seed of the sweep.", is_setting=True)
    timeout_sec: float = option(
        defaults.TIMEOUT_SEC,
        "Time limit of one trial.",
        name="timeout",
        kind=kinds.duration(),
    )

    per_replica_batch_size: BatchSize | None = option(
        None,
        "Examples per replica and step; constant in weak scaling.",
        STEPS,
        shown="the preset's",
    )
    global_batch_size: BatchSize | None = option(
        None,
        "Examples of all replicas per step; constant in strong scaling.",
        shown="the baseline's",
    )
    steps: tuple[int | None, int | None] = option(
        (None, None),
        "Warm-up and measured steps: `10+90`, `10+` or `+90`.",
        kind=STEP_COUNTS,
        shown="the preset's",
    )
    steps_per_sync: Steps | None = option(
        None,
        "Steps that are queued before their losses are read; they share their time.",
        shown=f"1; {defaults.STEPS_PER_SYNC_ON_GPUS} on GPUs, but for `d4pg`",
        is_setting=True,
    )

    budget: str | None = option(
        None,
        "Training budget of each quality run: `60s`, `10min`, `500steps`,"
        " `20000examples`; `window`: quality after each measured window;"
        " `60s,window`: both; `none`.",
        LEARNING,
        metavar="AMOUNT",
        shown="the preset's (`laptop`: `40s`), on the first backend only",
    )
    quality_repeats: Count = option(
        1, "Quality runs of each case, with different seeds.", is_setting=True
    )

    @property
    def is_evaluated(self) -> bool | None:
        return is_evaluated(self.budget)

    is_quality_only: bool = False  # Whether nothing but the quality runs is planned.
    # Another tree of sources, in which every case is measured as well.
    baseline: InstanceOf[SourceTree] | None = None
    # What a gate judges, and when it looks; None of a sweep.
    gate: InstanceOf[GateDesign] | None = None


def resolved(request: _Request, folder: Path) -> _Request:
    if request.command is None:
        _check_workload(request)
        return request
    is_client = request.metric == CLIENT
    variants = program_lib.parse_params(request.params, request.command)
    params = program_lib.params_of(variants)
    named = program_lib.names_in(request.command, params)
    has_batch = is_client or not _BATCHES.isdisjoint(named)
    if not (has_batch or request.per_replica_batch_size or request.global_batch_size):
        # Each replica has one unit of work, or they divide what all numbers divide.
        is_weak = ScalingMode.WEAK in request.modes
        name = "per_replica_batch_size" if is_weak else "global_batch_size"
        work = 1 if is_weak else math.lcm(*(request.replicas or (1,)))
        request = request.model_copy(update={name: work})
    assert request.command is not None
    _check(request)
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
    record = Program(
        command=request.command,
        metric=request.metric,
        unit=request.unit or UNIT,
        counts=request.counts,
        setup=getattr(request, "setup", None) or "",
    )
    left_out = [getattr(request, "runs_dir", folder / defaults.RUNS_DIR)]
    made = make(
        record, folder, replicas=request.replicas, left_out=left_out, variants=variants
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
    for each in declared(type(request)):  # those of a gate can say how it judges
        if each.group != OWN or each.field not in _OF_COMMANDS:
            continue
        value = getattr(request, each.field)
        value = " ".join(value) or None if isinstance(value, tuple) else value
        if value is not None:
            raise PlanError(
                f"--{each.name} {value!r} has no effect without --command; add the"
                " command of your program"
            )
    if not request.workload:
        raise PlanError(
            "nothing to measure: give --command with your program, or"
            " --workload with one that 'list workloads' shows"
        )


def _check(request: SweepRequest) -> None:
    """Raises if something is given that a command cannot have."""
    is_client = request.metric == CLIENT
    excluded = _OF_WORKLOADS if is_client else _OF_WORKLOADS + _OF_CLIENTS
    for each in declared(type(request)):
        value = getattr(request, each.field)
        is_window = each.field == "budget" and value == WINDOW
        is_nothing = (each.field, value) in (("budget", NONE), ("steps_per_sync", 1))
        is_nothing |= value == type(request).model_fields[each.field].default
        if each.field in excluded and not (is_nothing or (is_window and is_client)):
            raise PlanError(
                f"{each.spelling} has no effect with --command, whose program has its"
                " own; leave it out, or put it into the command"
                + " (one that connects has it: --metric client)"
                * (each.field in _OF_CLIENTS or is_window)
            )
    if request.order is Order.INTERLEAVED and request.metric != CLIENT:
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
    if Control.INDEPENDENT in request.controls:
        raise PlanError(
            "--controls independent with --command: only workloads of this project can "
            "run as programs that know nothing of each other; use nosync, which leaves "
            "out the communication"
        )


def judged_metric(metric: str, command: str | None) -> str:
    """Returns what a gate judges: of a program of the user's always its throughput."""
    is_of_program = "=" in metric or (metric in WITHOUT_PATTERN and command is not None)
    return THROUGHPUT if is_of_program else metric


OPTIONS: Final = (DATA, PER_REPLICA, GLOBAL)
"""Options that can be varied; every other key is an option of the workload."""
_FEWEST: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    key: str  # One of ``OPTIONS``, or an option of the workload.
    values: tuple[str, ...]  # As they were written.

    def words(self, value: str) -> tuple[str, str]:
        if self.key in OPTIONS:
            return f"--{self.key}", value
        return "--option", f"{self.key}={value}"

    def folder(self, value: str) -> str:
        text = re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{self.key}-{value}")
        return text.strip("-._")[:100]


def parse_vary(text: str, what: str) -> Axis:
    key, equals, listed = text.partition("=")
    values = tuple(value.strip() for value in listed.split(","))
    if not equals or not key.strip() or "" in values:
        raise ParseError(
            f"{what}: {text!r} is not KEY=A,B,...; write for example"
            f" {GLOBAL}=256,512, or {DATA}=cartpole:swingup,walker:walk"
        )
    axis = Axis(key=key.strip().removeprefix("--"), values=values)
    folders = [axis.folder(value) for value in values]
    for value, folder in zip(values, folders, strict=True):
        if folders.count(folder) > 1:
            raise ParseError(
                f"{what}: {value!r} is given twice, or its study would have the name"
                f" of another one, {folder!r}; give each value once"
            )
    if not _FEWEST <= len(values) <= MOST_VALUES:
        raise ParseError(
            f"{what}: {text!r} has {len(values)} values; allowed are {_FEWEST} to"
            f" {MOST_VALUES}; of one, use --{axis.key} or --option itself"
        )
    return axis


def varied(request: _Request, axis: Axis) -> dict[str, _Request]:
    """Returns a request for each value of what is varied, by the name of its study."""
    each = None
    if axis.key in OPTIONS:
        each = next(o for o in declared(type(request)) if o.name == axis.key)
    taken = getattr(request, each.field) if each else request.options.get(axis.key)
    if taken is not None:
        raise PlanError(
            f"--vary {axis.key}=... varies {axis.key}, which is {taken!r} by an option"
            " of its own; give one of the two"
        )
    requests = {}
    for value in axis.values:
        changed: dict[str, Any]
        if each:
            changed = {each.field: each.kind.read(value, each.spelling)}
        else:
            own = kinds.parse_key_values([f"{axis.key}={value}"], what="--vary")
            changed = {"options": {**request.options, **own}}
        requests[axis.folder(value)] = request.model_copy(update=changed)
    return requests
