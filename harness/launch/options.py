"""Options that several launchers have; each launcher declares which are its own."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from harness.options.durations import duration
from harness.options.option import Option
from results.records import limits

ARRAY: Final = "array"
"""The option of launchers that divide a sweep among jobs; a job is started without."""

Nodes = Annotated[
    int | None,
    Field(ge=1, le=limits.MAX_REPLICAS),
    Option(help="Hosts.", default="1 of a sweep; of files, the engine's"),
]
Array = Annotated[
    int | None,
    Field(ge=1, le=limits.MAX_REPLICAS),
    Option(
        help="Jobs, each with a K-th of the repetitions: its command gets the number of"
        " its shard. Each job of a sweep has a study of its own.",
        metavar="K",
    ),
]
TimeLimit = Annotated[
    float, Option(help="Time after which the job is ended.", kind=duration())
]
A_DAY: Final = 24 * 3600.0
"""The default of time limits, in seconds."""
