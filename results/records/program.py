"""A program of the user's: what was started, and how its figures were read.

Such a program is not part of this tree: it is started as a command, in whatever
framework, and what it prints is the measurement. Its rates are its own claims, so each
trial says how good the evidence is.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from results.records.bounds import Amount, Line, Name, Steps, Total
from results.records.limits import MAX_METRICS
from results.records.record_base import Record

Identity = Annotated[dict[Name, Line], Field(max_length=1_000)]
"""What the code digest of a program is made of, by name."""

CLIENT: Final = "client"
FEWEST_OF_WINDOW: Final = 3
"""Readings after warm-up that make a window; with fewer, the last one alone counts."""


MAX_ADVANCES: Final = 20
_EVERY = re.compile(r"\[[^\]=]*every ([1-9][0-9]{0,8})")


class Evidence(str, Enum):
    """How a trial of a program was read, the best first.

    ``window``: several numbers after warm-up, each timed as it was printed. ``rows``:
    several, without times: rows of a file, or output that came in bursts. ``last``: the
    number that was printed last; what it averages over, only the program knows.
    """

    WINDOW = "window"
    ROWS = "rows"
    LAST = "last"


def _name(text: str) -> str:
    """Returns NAME of ``NAME[WORDS]=PATTERN``."""
    return text.partition("=")[0].partition("[")[0].strip()


class Program(Record):
    """What the trials of a program have in common."""

    command: Line = Field(description="with its placeholders, such as {replicas}")
    metric: Line = Field(
        description="NAME=PATTERN, as it was requested; or 'client': its processes"
        " connect, and the harness has the clock"
    )
    unit: Name = Field(description="plural unit of what it processes")
    counts: tuple[Line, ...] = Field(
        default=(),
        max_length=MAX_METRICS,
        description="NAME=PATTERN, as requested: what is the same in each run",
    )
    folder: Line = Field(
        default="", description="where it starts, relative to its repository"
    )
    setup: Line = Field(default="", description="what prepared each revision of a gate")

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, data: Any) -> Any:
        """Ignores a field of earlier studies."""
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if name != "polls"}
        return data

    @property
    def count_names(self) -> tuple[str, ...]:
        """Names of what it counts, in order."""
        return tuple(map(_name, self.counts))

    @property
    def steps_per_line(self) -> int | None:
        """Steps that each of its lines is said to be of; None if that is not said."""
        found = _EVERY.search(self.metric.partition("=")[0])
        return int(found[1]) if found else None

    @property
    def is_client(self) -> bool:
        """Whether its processes connect by the client, rather than print numbers."""
        return self.metric == CLIENT


class Readings(Record):
    """How the numbers of one trial of a program were read."""

    evidence: Evidence
    num_readings: Steps = Field(description="numbers that it printed, warm-up included")
    num_processes: Total = Field(default=0, description="the most at once, as sampled")
    busy_cores: Amount | None = Field(
        default=None, description="CPU time of its processes per second of its life"
    )
    advances: tuple[Total, ...] = Field(
        default=(),
        max_length=MAX_ADVANCES,
        description="how far whole numbers in its lines rose in the window: its steps"
        " or examples may be among them",
    )
    remarks: tuple[Line, ...] = Field(
        default=(), max_length=20, description="what its user should know"
    )
