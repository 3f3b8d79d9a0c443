"""The base class of all records, and the types and bounds of their fields.

A record can come from anywhere: another machine, an incomplete copy, an attacker. It is
checked against these bounds before anything is computed from it, so that no figure
overflows, no axis is infinite, and no memory or time depends on a number in a file.
They are far beyond what is measured; options of the command line have the same ones.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from results.records.texts import UNPRINTABLE, UNSTORABLE

MAX_TRIALS = 100_000  # of one study; each is a process, so more would run for weeks
MAX_REPLICAS = 65_536
MAX_STEPS = 1_000_000  # of a measured window, or of the warmup: all are recorded
MAX_LOSSES = 100 * MAX_STEPS  # steps of a quality run
MAX_BATCH_SIZE = 1_000_000_000  # of one replica, and on the command line of all
MAX_TOTAL = 10**18  # sums: examples, bytes, parameters; 64 bits of pandas columns
MAX_SEED = 2**63 - 1
MIN_SEC, MAX_SEC = 1e-9, 1e9  # from the resolution of clocks to thirty years
MAX_REAL = 1e100  # of a figure; its square and sums of it do not overflow
MAX_FLOP_RATE = 1e24
MAX_EVALUATIONS = 10_000
MAX_BUDGET = 1e15
MAX_NAME, MAX_LINE, MAX_TEXT = 200, 5_000, 1_000_000  # characters
MAX_METRICS = 50
MAX_CHECKS = 200_000  # sanity checks of one trial: a few of each rank


class Record(BaseModel):
    """Base of all records: frozen, closed, bounded."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def optional(description: str, default: Any = None, **bounds: Any) -> Any:
    """Returns a field with a default: None where it is not known."""
    return Field(default, description=description, **bounds)


def mapping(description: str | None = None, *, max_length: int = 1_000) -> Any:
    """Returns a field that is empty by default."""
    return Field(default_factory=dict, max_length=max_length, description=description)


_LABELS = {"relay": "interleaved", "twin": "A/A control", "solo": "independent"}


class Word(str, Enum):
    """A value that records store, under a name that users may say differently."""

    @property
    def label(self) -> str:
        """The name that users say and read."""
        return _LABELS.get(self.value, self.value)


def _check_printable(text: str) -> str:
    match = UNPRINTABLE.search(text)
    if match is not None:
        raise ValueError(
            f"holds {match[0]!r}, must be one line of printable characters"
        )
    return text


def _check_storable(text: str) -> str:
    match = UNSTORABLE.search(text)
    if match is not None:
        raise ValueError(f"holds {match[0]!r}, must be text that UTF-8 can encode")
    return text


Name = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_check_printable)]
"""One short line: names, units, versions, times of day."""
Line = Annotated[str, Field(max_length=MAX_LINE), AfterValidator(_check_printable)]
"""One long line: a path, a data set, an argument."""
Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_check_storable)]
"""Output of a program, in any number of lines."""
TrialId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
"""An id made by ``identity``; it is also the name of a folder."""
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$|^$")]
"""A file in the trial's own folder, or none."""

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
Rank = Annotated[int, Field(ge=0, lt=MAX_REPLICAS)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)]
GlobalBatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE * MAX_REPLICAS)]
Cores = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
Index = Annotated[int, Field(ge=0, le=MAX_TRIALS)]
Repeats = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Total = Annotated[int, Field(ge=0, le=MAX_TOTAL)]
PositiveTotal = Annotated[int, Field(ge=1, le=MAX_TOTAL)]
Nanoseconds = Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)]
ExitCode = Annotated[int, Field(ge=-(2**31), le=2**32)]
Real = Annotated[float, Field(ge=-MAX_REAL, le=MAX_REAL)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=MAX_SEC)]
"""Loads, quotas, and durations that may be zero."""
Seconds = Annotated[float, Field(ge=MIN_SEC, le=MAX_SEC)]
"""A duration that is used as a divisor or in a logarithm."""
Duration = Annotated[float, Field(gt=0, le=MAX_SEC)]
Level = Annotated[float, Field(gt=0, lt=0.5)]
"""Of a one-sided test."""
FlopRate = Annotated[float, Field(ge=1, le=MAX_FLOP_RATE)]
"""Floating-point operations per second."""
OptionValue = bool | Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | Real | Line


class Change(Record):
    """A sketch of what training changed in a model or in an optimizer's state.

    Sketches of two trials with the same variables can be compared: the length of their
    difference estimates that of the difference of all elements.
    """

    group: Literal["model", "optimizer"]
    name: Name
    sketch: Annotated[tuple[Real, ...], Field(min_length=1, max_length=4_096)]


Changes = Annotated[tuple[Change, ...], Field(max_length=10_000)]
