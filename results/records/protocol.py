"""What a program and the harness say to each other: the protocol of the client.

``docs/client_protocol.md`` explains it; ``docs/schema/client.schema.json`` is made of
these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from results.records.measuring import Attempt, BlockFacts, Control
from results.records.models import Failure, Phase, QualityMetric, QualityPoint
from results.records.record_base import (
    MAX_LOSSES,
    MAX_REPLICAS,
    Amount,
    BatchSize,
    Change,
    FlopRate,
    Fraction,
    GlobalBatchSize,
    Index,
    Line,
    Name,
    Nanoseconds,
    Rank,
    Real,
    Record,
    Replicas,
    Seconds,
    Seed,
    Steps,
    Text,
    Total,
    optional,
)

# Messages and commands go over a socket, as one line of JSON each.


class TrialFile(Record):
    """``client.json``: what a trial asks of its program."""

    protocol: Literal[3] = 3
    num_replicas: Replicas
    per_replica_batch_size: BatchSize
    global_batch_size: GlobalBatchSize
    unit: Name = Field(description="plural unit of an example")
    seed: Seed
    num_warmup_steps: Steps = Field(description="the first step included")
    num_measured_steps: Steps | None = Field(
        description="null where the harness gives blocks"
    )
    control: Control = Control.NONE
    is_evaluated: bool = Field(description="whether the study wants quality")


class Imported(Record):
    """A process has connected; answered by ``build``."""

    state: Literal["imported"]
    rank: Rank
    num_ranks: Replicas | None = None
    protocol: int = optional("2 did not say it", 2)
    has_sustained: bool = optional(
        "whether it lets its garbage collector work in sustained blocks", False
    )


class Built(Record):
    """All but the last warm-up step are done; answered by ``warm_up``."""

    state: Literal["built"]
    rank: Rank


class Ready(Record):
    """The last warm-up step is done; answered by ``turn`` or ``finish``."""

    state: Literal["ready"]
    rank: Rank
    step_time_sec: Amount


class BlockDone(BlockFacts):
    """The block has ended; answered by ``turn`` or ``finish``."""

    state: Literal["turn"]
    rank: Rank


Message = Annotated[Imported | Built | Ready | BlockDone, Field(discriminator="state")]
"""From a process to the harness: one line of JSON."""


class Build(Record):
    """Build the program, and run all but the last warm-up step."""

    command: Literal["build"]
    is_alone: bool = Field(description="whether no other process starts meanwhile")


class WarmUp(Record):
    """Run the last warm-up step, alone on the machine."""

    command: Literal["warm_up"]
    heap_fraction: Fraction = Field(
        description="by how much the heap may grow before, of the memory of the process"
    )


class MeasureBlock(Record):
    """Run so many steps."""

    command: Literal["turn"]
    round_index: Index
    attempt: Attempt = Field(description="above 0 where the one before was disturbed")
    num_steps: Steps
    is_sustained: bool = optional(
        "let the garbage collector work, as it does outside of studies;"
        " sent only to programs that have said ``has_sustained``",
        False,
    )


class Finish(Record):
    """Check, evaluate, record, and exit."""

    command: Literal["finish"]


Command = Annotated[
    Build | WarmUp | MeasureBlock | Finish, Field(discriminator="command")
]
"""From the harness to each process: one line of JSON."""


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
    index: int = Field(ge=0, lt=MAX_LOSSES)
    start_ns: Nanoseconds
    end_ns: Nanoseconds = Field(description="after all work of the device")
    loss: Loss = Field(description="mean over the global batch; null if there is none")


class FirstStepLine(Record):
    """The first step is done."""

    kind: Literal["first_step_done"]
    time_to_first_step_sec: Seconds
    is_alone: bool = Field(
        description="as ``build`` said; true without an interleaved measurement"
    )


class BlockLine(BlockFacts):
    """The block whose steps are the lines before; as it is sent."""

    kind: Literal["turn"]


class PeakLine(Record):
    """The peak rate of the devices of the process, where it was measured."""

    kind: Literal["peak"]
    flops_per_sec: FlopRate
    method: Line


class GpuCanaryLine(Record):
    """Rates of a matrix product on each GPU of the process, before warm-up."""

    kind: Literal["gpu_canary"]
    tflops: tuple[Amount, ...] = Field(max_length=MAX_REPLICAS)
    reason: Line = optional("why there is none", "")


class ExplainLine(Record):
    """A description of the collectives in a step."""

    kind: Literal["explain"]
    collectives: Text


class MemoryLine(Record):
    """The peak of the measured steps."""

    kind: Literal["memory"]
    peak_memory_bytes: Total
    method: Line


class LifeLine(Record):
    """The process is alive, as in a long window every few seconds, or has done all."""

    kind: Literal["heartbeat", "done"]
    ns: Nanoseconds


class SanityLine(Record):
    """One check of correctness; a trial that fails one gives no number."""

    kind: Literal["sanity"]
    name: Name
    is_passed: bool
    detail: Text


class MetricLine(QualityMetric):
    """What was learned, at the end; or what was counted within the measured steps."""

    kind: Literal["quality", "window_metric"]


class PointLine(QualityPoint):
    """What was learned so far; of a quality run."""

    kind: Literal["point"]


class ChangeLine(Change):
    """What the first steps changed; of a trial that is matched."""

    kind: Literal["change"]


class FailureLine(Failure):
    """Why the process failed."""

    kind: Literal["failure"]


RankLine = Annotated[
    TrialLine
    | PhaseLine
    | ClientLine
    | ClockLine
    | FactsLine
    | StepLine
    | FirstStepLine
    | BlockLine
    | PeakLine
    | GpuCanaryLine
    | ExplainLine
    | MemoryLine
    | LifeLine
    | SanityLine
    | MetricLine
    | PointLine
    | ChangeLine
    | FailureLine,
    Field(discriminator="kind"),
]
"""A line of ``rank_<k>.jsonl``."""


_OWN_KINDS = {"nccl", "reading", "used"}
"""Of processes of ours: the version of NCCL; of a program that prints numbers, each of
them with its time (``ns``, ``value``), and what it used (``num_processes``,
``busy_cores``, ``advances``, ``remarks``). Its ``facts`` have ``num_replicas`` and
``metric`` as well, which say what its numbers mean."""
RANK_KINDS: Final = _OWN_KINDS.union(
    *(
        get_args(model.model_fields["kind"].annotation)
        for model in get_args(get_args(RankLine)[0])
    )
)
"""The kinds of lines in the file of a rank."""
VERSION: Final = 3
_MESSAGES: Final[TypeAdapter[Message]] = TypeAdapter(Message)
_LINES: Final[TypeAdapter[RankLine]] = TypeAdapter(RankLine)


class ProtocolError(ValueError):
    """What a program said is not of the protocol; one line says what is wrong."""


def read_message(line: bytes) -> dict[str, Any]:
    """Returns the fields of a message from a program, defaults included."""
    return _read(_MESSAGES, line).model_dump()


def read_line(line: bytes) -> Record:
    """Returns a line of a rank's file."""
    return _read(_LINES, line)


def _read(adapter: TypeAdapter[Any], content: bytes) -> Any:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        shown = content.decode("utf-8", errors="replace").strip()[:200]
        raise ProtocolError(f"{where}: {first['msg']}; it was {shown!r}") from None


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of the protocol: a definition for each direction."""
    definitions: dict[str, Any] = {}
    for name, adapter in (
        ("trial_file", TypeAdapter(TrialFile)),
        ("message", _MESSAGES),
        ("command", TypeAdapter(Command)),
        ("rank_line", _LINES),
    ):
        own = adapter.json_schema(ref_template="#/$defs/{model}")
        definitions |= own.pop("$defs", {})
        definitions[name] = own
    return {
        "title": f"Protocol of the client, version {VERSION}",
        "description": "each line of a direction is one of its definition",
        "$defs": definitions,
    }
