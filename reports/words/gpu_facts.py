"""What a report says about the GPUs of a study, from the records of its trials."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from reports.words import formats
from results.records.machines import gpu_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.machines.gpu_record import GpuUse
    from results.records.models import Environment
    from results.study.cases import Entry

LEAST_OF_MEDIAN = 0.95
"""As in ``doctor``: below it, a GPU makes the others of its trial wait."""


def while_measured(environments: Sequence[Environment]) -> str:
    """Says what the GPUs did while trials were measured; "" without GPUs."""
    uses = [use for env in environments for use in env.gpu_uses]
    clocks = [use.clock_mhz for use in uses if use.clock_mhz is not None]
    powers = [use.power_watts for use in uses if use.power_watts is not None]
    heats = [u.temperature_celsius for u in uses if u.temperature_celsius is not None]
    reasons = sorted({reason for use in uses for reason in use.slowed_by})
    parts = []
    if clocks:
        parts.append(f"{min(clocks):,.0f} to {max(clocks):,.0f} MHz")
    if powers:
        parts.append(f"{min(powers):,.0f} to {max(powers):,.0f} W")
    if heats:
        parts.append(f"at most {max(heats):.0f} degrees Celsius")
    if reasons:
        parts.append(f"clock lowered by {' and '.join(reasons)}")
    return ", ".join(parts)


def sharing(environments: Sequence[Environment]) -> str:
    """Says whether the driver confirmed that GPUs had no other users; "" without."""
    watched = [env.gpu_uses for env in environments if env.gpu_uses]
    if not watched:
        return ""
    shared = [uses for uses in watched if any(u.num_foreign_processes for u in uses)]
    if shared:
        return (
            f"other processes used the GPUs of {len(shared)} of "
            f"{formats.count(len(watched), 'trial')}, which are void"
        )
    unknown = [
        uses for uses in watched if any(u.num_foreign_processes is None for u in uses)
    ]
    if unknown:
        return (
            f"not confirmed in {len(unknown)} of "
            f"{formats.count(len(watched), 'trial')}: the driver does not list "
            "processes"
        )
    return (
        f"the driver listed no other process in {formats.count(len(watched), 'trial')}"
    )


def products(environments: Sequence[Environment]) -> str:
    """Says how fast a matrix product was before the windows; "" if not recorded."""
    known = [rated for env in environments if (rated := _rated(env.gpu_uses))]
    if not known:
        return ""
    rates = [rate for rated in known for _, rate in rated]
    text = f"{_range(rates)} TFLOP/s in bfloat16, timed before the windows"
    compared = [_slowest(rated) for rated in known if len(rated) > 1]
    if compared:
        ratio, index = min(compared)
        text += (
            f"; the slowest GPU within a trial was GPU {index}, with "
            f"{formats.ratio(ratio)} of the median"
        )
        if ratio < LEAST_OF_MEDIAN:
            text += ": every synchronous step waited for it"
    missing = sum(1 for env in environments if env.gpu_uses) - len(known)
    if missing:
        text += f"; not recorded in {formats.count(missing, 'trial')}"
    return text


def _rated(uses: Sequence[GpuUse]) -> list[tuple[int, float]]:
    """Returns the GPUs of a trial and their rates."""
    return [
        (use.index, use.product_tflops)
        for use in uses
        if use.product_tflops is not None
    ]


def _slowest(rated: Sequence[tuple[int, float]]) -> tuple[float, int]:
    """Returns the rate of the slowest GPU over the median, and its number."""
    median = statistics.median(rate for _, rate in rated)
    index, rate = min(rated, key=lambda pair: pair[1])
    return (rate / median if median else 1.0), index


def energy(entries: Sequence[Entry]) -> str:
    """Says what energy an example took on all GPUs; "" if not recorded."""
    by_replicas: dict[int, list[float]] = {}
    unit = ""
    for entry in entries:
        if not entry.is_ok or entry.trial is None or entry.trial.env is None:
            continue
        joules = gpu_record.joules_per_example(
            entry.trial.env.gpu_uses, entry.result.examples_per_sec
        )
        if joules is not None:
            by_replicas.setdefault(entry.spec.num_replicas, []).append(joules)
            unit = entry.result.example_unit
    return "; ".join(
        f"{_range(values)} J with {formats.count(number, 'GPU')}"
        for number, values in sorted(by_replicas.items())
    ) + (f", per {unit.removesuffix('s')} on all GPUs of a trial" if unit else "")


def _range(values: Sequence[float]) -> str:
    low, high = (formats.significant(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
