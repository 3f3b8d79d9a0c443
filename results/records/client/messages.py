"""What the harness asks of a program, and what they send each other.

The trial's file stands in the folder of a trial; messages and commands go over a
socket, as one line of JSON each. ``results.records.client.protocol`` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from results.records import limits
from results.records.bounds import (
    Amount,
    Fraction,
    GlobalBatchSize,
    Index,
    Name,
    Nanoseconds,
    Replicas,
    Seed,
    Steps,
    Total,
)
from results.records.measuring import MAX_ATTEMPTS, Control
from results.records.record_base import Record

Rank = Annotated[int, Field(ge=0, lt=limits.MAX_REPLICAS)]
Attempt = Annotated[int, Field(ge=0, lt=MAX_ATTEMPTS)]


class TrialFile(Record):
    """``client.json``: what a trial asks of its program."""

    protocol: Literal[3] = 3
    num_replicas: Replicas
    per_replica_batch_size: int = Field(ge=1, le=limits.MAX_BATCH_SIZE)
    global_batch_size: GlobalBatchSize
    unit: Name = Field(description="plural unit of an example")
    seed: Seed
    num_warmup_steps: Steps = Field(description="the first step included")
    num_measured_steps: Steps | None = Field(
        description="null where the harness gives turns"
    )
    control: Control = Control.NONE
    is_evaluated: bool = Field(description="whether the study wants quality")


class Imported(Record):
    """A process has connected; answered by ``build``."""

    state: Literal["imported"]
    rank: Rank
    num_ranks: Replicas | None = None
    protocol: int = Field(default=2, description="2 did not say it")
    has_sustained: bool = Field(
        default=False,
        description="whether it lets its garbage collector work in sustained turns",
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


class TurnFacts(Record):
    """What a process did and used in a turn; the usage is that of ``getrusage``."""

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
    num_retraces: Total = Field(
        default=0, description="compilations within the turn, which make it void"
    )


class TurnDone(TurnFacts):
    """The turn has ended; answered by ``turn`` or ``finish``."""

    state: Literal["turn"]
    rank: Rank


Message = Annotated[Imported | Built | Ready | TurnDone, Field(discriminator="state")]
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


class TakeTurn(Record):
    """Run so many steps."""

    command: Literal["turn"]
    round_index: Index
    attempt: Attempt = Field(description="above 0 where the one before was disturbed")
    num_steps: Steps
    is_sustained: bool = Field(
        default=False,
        description="let the garbage collector work, as it does outside of studies;"
        " sent only to programs that have said ``has_sustained``",
    )


class Finish(Record):
    """Check, evaluate, record, and exit."""

    command: Literal["finish"]


Command = Annotated[Build | WarmUp | TakeTurn | Finish, Field(discriminator="command")]
"""From the harness to each process: one line of JSON."""
