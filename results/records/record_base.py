"""The base class of all records."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from results.records.limits import (
    MAX_BATCH_SIZE,
    MAX_FLOP_RATE,
    MAX_LINE,
    MAX_NAME,
    MAX_REAL,
    MAX_REPLICAS,
    MAX_SEC,
    MAX_SEED,
    MAX_STEPS,
    MAX_TEXT,
    MAX_TOTAL,
    MAX_TRIALS,
    MIN_SEC,
)
from results.records.texts import UNPRINTABLE, UNSTORABLE


class Record(BaseModel):
    """Base of all records: frozen, closed, bounded."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def optional(description: str) -> Any:
    """Returns a field that is None where it is not known."""
    return Field(default=None, description=description)


_LABELS = {
    "relay": "interleaved",
    "twin": "A/A control",
    "solo": "independent",
    "failed_checks": "failed_checks",
    "discarded": "discarded",
}


class Word(str, Enum):
    """A value that records store, under a name that users may say differently."""

    @property
    def label(self) -> str:
        """The name that users say and read."""
        return _LABELS.get(self.value, self.value)


# A record can come from anywhere: another machine, an incomplete copy, an attacker. It
# is checked against these bounds before anything is computed from it, so that no figure
# overflows, no axis is infinite, and no memory or time depends on a number in a file.


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
Amount = Annotated[float, Field(ge=0, le=MAX_SEC)]
"""Loads, quotas, and durations that may be zero."""
Seconds = Annotated[float, Field(ge=MIN_SEC, le=MAX_SEC)]
"""A duration that is used as a divisor or in a logarithm."""
FlopRate = Annotated[float, Field(ge=1, le=MAX_FLOP_RATE)]
"""Floating-point operations per second."""
OptionValue = bool | Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | Real | Line


MAX_CHANGES = 10_000
MAX_SKETCH = 4_096


class Change(Record):
    """A sketch of what training changed in a model or in an optimizer's state.

    Sketches of two trials with the same variables can be compared: the length of their
    difference estimates that of the difference of all elements.
    """

    group: Literal["model", "optimizer"]
    name: Name
    sketch: Annotated[tuple[Real, ...], Field(min_length=1, max_length=MAX_SKETCH)]


Changes = Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES)]
