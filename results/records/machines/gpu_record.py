"""What the driver said of a trial's GPUs while it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from results.records import limits
from results.records.record_base import Amount, Index, Name, Record, Total

if TYPE_CHECKING:
    from collections.abc import Sequence

VOIDING_REASONS = frozenset(
    {"hardware slowdown", "heat", "heat (hardware)", "power brake"}
)
"""Reasons for a lower clock that the machine is to blame for. A power limit is none:
under full load most GPUs run at theirs."""


def _is_empty(values: Sequence[object]) -> bool:
    return not values


class GpuUse(Record):
    """One GPU over a measured window or a turn. None: the driver did not say."""

    index: Index = Field(description="its number for the driver")
    num_samples: Total = Field(description="readings that the figures are taken from")
    clock_mhz: Amount | None = Field(
        default=None, description="of the multiprocessors, mean over readings"
    )
    lowest_clock_mhz: Amount | None = None
    memory_clock_mhz: Amount | None = Field(
        default=None, description="mean over readings"
    )
    power_watts: Amount | None = Field(default=None, description="mean over readings")
    temperature_celsius: Amount | None = Field(
        default=None, description="of the chip, the highest reading"
    )
    slowed_by: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(), description="why its clock was lowered in any reading"
    )
    energy_joules: Amount | None = Field(
        default=None, description="between the first and the last reading"
    )
    watched_sec: Amount = Field(
        default=0.0, description="between the first and the last reading"
    )
    num_foreign_processes: Total | None = Field(
        default=None, description="that had a context on it; the most in one reading"
    )
    faults: tuple[Name, ...] = Field(
        default=(),
        max_length=8,
        exclude_if=_is_empty,
        description="what the driver said where it could not read it, and errors of its"
        " memory that appeared",
    )
    product_tflops: Amount | None = Field(
        default=None,
        description="TFLOP/s of a bfloat16 matrix product before the warm-up steps",
    )

    @property
    def void_reason(self) -> str:
        """Why nothing measured on it counts, as one phrase; empty if it does."""
        if self.faults:
            return self.faults[0]
        if self.num_foreign_processes:
            return others_text(self.num_foreign_processes, self.index)
        causes = [reason for reason in self.slowed_by if reason in VOIDING_REASONS]
        if causes:
            return (
                f"the clock of GPU {self.index} was lowered by {' and '.join(causes)}"
            )
        return ""


def unread_text(index: int, said: str) -> str:
    """Says that the driver could not read a GPU."""
    return f"GPU {index} could not be read ({said}): nobody knows who used it"


def memory_text(count: int, index: int) -> str:
    """Says that memory of a GPU has lost what was in it."""
    errors = (
        "1 uncorrected ECC error" if count == 1 else f"{count} uncorrected ECC errors"
    )
    return f"{errors} appeared on GPU {index}"


def others_text(count: int, index: int) -> str:
    """Says that other processes used a GPU."""
    others = "1 other process" if count == 1 else f"{count} other processes"
    return f"{others} used GPU {index}"


GpuUses = Annotated[
    tuple[GpuUse, ...], Field(max_length=limits.MAX_REPLICAS, exclude_if=_is_empty)
]
"""Stored where there are some: records of trials on CPUs are as they were before GPUs
were watched, and sources of older revisions, which reject unknown fields, read them."""


def with_products(
    uses: Sequence[GpuUse], tflops: Sequence[float]
) -> tuple[GpuUse, ...]:
    """Returns what a trial's GPUs did, with the rates of a matrix product on them.

    Where not each GPU has one, such as those of served workers, none is given.
    """
    if len(tflops) != len(uses):
        return tuple(uses)
    return tuple(
        use.model_copy(update={"product_tflops": rate})
        for use, rate in zip(uses, tflops, strict=True)
    )


def void_reason(uses: Sequence[GpuUse]) -> str:
    """Returns why the first of the GPUs to blame makes a figure void, or ""."""
    return next((use.void_reason for use in uses if use.void_reason), "")


def joules_per_example(uses: Sequence[GpuUse], examples_per_sec: float) -> float | None:
    """Returns the energy of all GPUs per example; None where one did not say."""
    watts = 0.0
    for use in uses:
        if use.energy_joules is None or not use.watched_sec:
            return None
        watts += use.energy_joules / use.watched_sec
    return watts / examples_per_sec if uses else None
