"""The state of the machine that a trial ran on, as far as it moves performance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from results.records.bounds import Cores, Name
from results.records.record_base import Record

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class MachineState(Record):
    """Settings of kernel and firmware, and the source code. None: cannot be read."""

    glibc_version: Name | None = None
    transparent_huge_pages: Name | None = Field(
        default=None, description="always, madvise or never"
    )
    cpu_governor: Name | None = Field(
        default=None, description="of the trial's cores; joined by + where they differ"
    )
    is_boost_enabled: bool | None = Field(
        default=None, description="whether cores may exceed their base clock"
    )
    is_smt_active: bool | None = Field(
        default=None, description="whether cores run two threads at once"
    )
    num_numa_nodes: Cores | None = None
    gpu_driver: Name | None = None
    git_commit: Commit | None = Field(
        default=None, description="of the source tree; None outside of git"
    )
    is_source_modified: bool | None = Field(
        default=None, description="whether Python files differ from that commit"
    )
