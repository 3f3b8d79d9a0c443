"""Settings of a trial's steps, each declared once, as a field.

A field is recorded in every spec and is part of its identity, unless it has its
default; trials of one study have the same. Two studies may differ in it, since this
may be what they compare. The harness makes an option of it, which is a key of study
files, and passes what was chosen on (``harness/planning/settings.py``).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from pydantic import Field

from results.records.bounds import Steps
from results.records.record_base import Record


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a setting is where none was requested."""

    on_gpus: int  # On GPUs; on CPUs it is the default of its field.
    # Name of the fact of a workload that says, if it is not empty, why the setting
    # keeps the default of its field.
    unless: str
    then: str  # What follows from that fact, for the message.
    where: str  # Which workloads have that fact, in words.


class StepSettings(Record):
    """How a trial runs its steps."""

    steps_per_sync: Annotated[
        Steps,
        Chosen(
            on_gpus=10,
            unless="syncs_because",
            then="so a step ends before the next one starts",
            where="where the host uses the results of each step (`d4pg`)",
        ),
    ] = Field(
        default=1,
        description="Steps that are started before their losses are read, so that a GPU"
        " need not wait for the host; they share their time.",
    )
