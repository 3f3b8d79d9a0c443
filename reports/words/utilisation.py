"""Model FLOP utilisation of the cases of a study, as a table."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Final

from reports.words import formats
from results.figures import scaling
from results.records import machine_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reports.view.view import View
    from results.figures.lost_time import InputBound, LostTime
    from results.figures.scaling import Point
    from results.records.machine_record import GpuUse
    from results.records.models import Environment
    from results.statistics.estimates import Estimate
    from results.study.cases import Entry


_GIGA = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """What cases reach of the rate that matrix products reach on the same devices."""

    peak: str  # That rate, in GFLOP/s per replica.
    # Backend, replicas, batch per replica, utilisation with its interval, and n.
    rows: tuple[tuple[str, int, int, str, int], ...]


def of_view(view: View) -> Utilisation | None:
    """Returns the utilisation of every case where it was measured; None without any."""
    rows = []
    peaks: list[float] = []
    for case in view.measured_cases:
        estimate = scaling.of_trials(case, "flop_utilisation").estimate
        if estimate is None:
            continue
        spec = case.spec
        figure = formats.estimate(estimate, formats.percent)
        size, batch = spec.num_replicas, spec.per_replica_batch_size
        rows.append((spec.backend, size, batch, figure, estimate.n))
        peaks += [
            sum(rank.peak_flops_per_sec or 0.0 for rank in entry.result.ranks)
            / (size * _GIGA)
            for entry in case.ok_entries
        ]
    if not rows:
        return None
    ends = dict.fromkeys(map(formats.significant, (min(peaks), max(peaks))))
    return Utilisation(peak=" to ".join(ends), rows=tuple(rows))


_MEANINGS = {
    "input-bound": "faster replicas would wait for their batches",
    "not input-bound": "its batches arrive before they are needed",
    "inconclusive": "whether it is input-bound is inconclusive",
}


def _mean_text(found: Estimate, write: Callable[[float], str]) -> str:
    return formats.with_interval(found.value, found.low, found.high, write)


def fraction_text(found: InputBound) -> str:
    """Writes the fraction of a step that the pipelines take alone."""
    return _mean_text(found.fraction, formats.percent)


def statement(found: InputBound, write: Callable[[float], str]) -> str:
    """Says what the pipelines take alone, for the section on lost time."""
    return (
        f"{found.verdict}: the input pipelines alone take "
        f"{_mean_text(found.input_sec, write)} ms, {fraction_text(found)} of the "
        f"step; {_MEANINGS[found.verdict]}"
    )


# Nothing is said where nothing is lost: a cause and an advice need an efficiency whose
# interval is below 1, and a part that is most of the loss
# (``results/figures/lost_time.py``).

CAUSES: Final = {
    "contention": "contention for memory and caches",
    "exposed_communication": "waiting for communication",
    "input": "waiting for input",
    "imbalance": "uneven replicas",
    "update": "the update",
    "computing": "more CPU time per example",
    "core_wait": "waiting for a core",
    "idle": "cores without work",
}
REMEDIES: Final = {
    "contention": "try cores with memory bandwidth of their own",
    "exposed_communication": "try larger batches per replica",
    "input": "try a faster input pipeline",
    "imbalance": "try equal work per replica",
    "update": "try a sharded update",
}
"""By parts that a control has shown; what turns record is too coarse for an advice."""


def loss_of(view: View, point: Point) -> LostTime | None:
    """Returns the parts of a point's step: from controls, else from its turns."""
    for item in view.explained:
        if item.case.case_id == point.case.case_id and item.lost is not None:
            return item.lost
    for recorded in view.recorded:
        same = recorded.case.case_id == point.case.case_id
        if same and recorded.mode is point.mode:
            return recorded.lost
    return None


def is_lost(efficiency: Estimate | None) -> bool:
    """Whether the interval of an efficiency shows that time is lost."""
    return efficiency is not None and efficiency.value < 1 and efficiency.excludes(1.0)


def worst_loss(points: Sequence[Point]) -> Point:
    """Returns the point of the lowest efficiency."""
    return min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)


def remedy(view: View, points: Sequence[Point]) -> str:
    """Returns what to try against the cause that a control has shown, or nothing."""
    point = worst_loss(points)
    lost = loss_of(view, point)
    if lost is None or not is_lost(point.efficiency):
        return ""
    return REMEDIES.get(lost.main_loss, "")


def sentence(view: View, points: Sequence[Point]) -> str:
    """Says what most of the time is lost to, at the lowest efficiency of a backend.

    Or that nothing is lost, that it was not recorded, or that it is not explained.
    """
    point = worst_loss(points)
    efficiency = point.efficiency
    if not is_lost(efficiency):
        is_below = efficiency is not None and efficiency.value < 1
        text = f"Whether {point.backend} loses time is inconclusive."
        return text if is_below else ""
    lost = loss_of(view, point)
    if lost is None:  # nobody can say, of a program of the user's
        return "Causes were not recorded." if view.study.program is None else ""
    mode = f" in {point.mode.value} scaling" if len(points) > 1 else ""
    share = lost.lost.share
    if share is None or share.low is None:
        return "One run tells no cause of lost time."
    whole = formats.estimate(share, formats.percent)
    if not lost.main_loss:
        return (
            f"{point.backend} loses {whole} of a step{mode}; no single cause is shown"
            " to be most of it."
        )
    part = lost.part(lost.main_loss)
    assert part.share is not None
    return (
        f"Most of what {point.backend} loses{mode}: {CAUSES[part.name]},"
        f" {formats.estimate(part.share, formats.percent)} of a step."
    )


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
            f"{formats.count(len(watched), 'trial')}, which are discarded"
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
        joules = machine_record.joules_per_example(
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
