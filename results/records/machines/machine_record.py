"""The state of the machine that a trial ran on, as far as it moves performance."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from results.records.bounds import Cores, Name
from results.records.record_base import Record

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]

_SHORT_COMMIT: Final = 12


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
    container: Name | None = Field(
        default=None,
        description="what it ran in, and the id of the image where it is known",
    )
    git_commit: Commit | None = Field(
        default=None, description="of the source tree; None outside of git"
    )
    is_source_modified: bool | None = Field(
        default=None, description="whether Python files differ from that commit"
    )

    def without_code(self) -> dict[str, Any]:
        """Returns the fields that say where was measured, not what.

        Nor in what: an image is built anew for every commit, and what it holds that
        moves performance is recorded by itself.
        """
        left_out = {"git_commit", "is_source_modified", "container"}
        return self.model_dump(mode="json", exclude=left_out)

    @property
    def commit_text(self) -> str:
        """The commit in words, abbreviated; empty outside of git."""
        if self.git_commit is None:
            return ""
        changes = " with changes" if self.is_source_modified else ""
        return f"{self.git_commit[:_SHORT_COMMIT]}{changes}"
