"""Options that several launchers have; each launcher declares which are its own."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from harness.options.durations import duration
from harness.options.option import Option
from results.records import limits

Nodes = Annotated[
    int | None,
    Field(ge=1, le=limits.MAX_REPLICAS),
    Option(help="Hosts.", default="1 of a sweep; of files, the engine's"),
]
TimeLimit = Annotated[
    float, Option(help="Time after which the job is ended.", kind=duration())
]
A_DAY: Final = 24 * 3600.0
"""The default of time limits, in seconds."""
