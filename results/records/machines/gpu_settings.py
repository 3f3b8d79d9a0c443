"""How the GPUs of a trial are set and connected, as the driver says before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from results.records import limits
from results.records.bounds import Amount, Index, Name, Total
from results.records.record_base import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


def _is_empty(values: Sequence[object]) -> bool:
    return not values


class GpuSettings(Record):
    """One GPU of a trial. None: the driver did not say."""

    index: Index = Field(description="its number for the driver")
    power_limit_watts: Amount | None = Field(default=None, description="enforced now")
    is_persistent: bool | None = Field(
        default=None, description="whether the driver stays loaded without users"
    )
    is_ecc_enabled: bool | None = Field(
        default=None, description="whether its memory corrects errors"
    )
    num_corrected_errors: Total | None = Field(
        default=None, description="of its memory, since the last reset"
    )
    num_uncorrected_errors: Total | None = Field(
        default=None, description="of its memory, since the last reset"
    )
    pcie_generation: Total | None = Field(
        default=None, description="the highest that GPU and slot have; idle, it is less"
    )
    pcie_width: Total | None = Field(default=None, description="lanes in use")
    num_nvlinks: Total | None = Field(default=None, description="that are active")
    paths: Annotated[tuple[Name, ...], Field(max_length=limits.MAX_REPLICAS)] = Field(
        default=(),
        description="to each GPU of the trial, in their order, as 'nvidia-smi topo -m'"
        " names them: X itself, NV18 over 18 links, PIX, PXB, PHB, NODE, SYS; ?",
    )


AllGpuSettings = Annotated[
    tuple[GpuSettings, ...],
    Field(max_length=limits.MAX_REPLICAS, exclude_if=_is_empty),
]
"""Stored where there are some, as what the GPUs did (``gpu_record``)."""
