"""The history of a site: each case over its studies, and its machines."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from reports.charts import over_replicas, svg
from reports.site.card import day
from reports.words import formats
from results.figures.history import history

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from results.figures.history import Observation, Series
    from results.study.cases import Study

MOST_CHARTS: Final = 40
_FEWEST: Final = 2
_NUM_COLORS: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseHistory:
    """One case over time."""

    title: str  # Workload, preset and case.
    unit: str  # Of its throughput.
    drawing: Markup  # Its chart.
    # Of the table: date, study, commit, throughput, interval, machine.
    rows: tuple[tuple[str, ...], ...]
    machines: tuple[tuple[str, str], ...]  # The machine classes: letter and words.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """The history of all cases."""

    # Those with two or more studies, most studies first.
    cases: tuple[CaseHistory, ...]
    num_single: int  # How many cases have one study only.
    num_left_out: int  # How many cases have no chart because there are too many.
    reasons: tuple[str, ...]  # Why cases have no place in any series, one line each.


def histories(studies: Iterable[Study]) -> Histories:
    """Returns the history of every case that two or more studies have."""
    found = history(studies)
    by_case: dict[str, list[Series]] = {}
    for series in found.series:
        by_case.setdefault(series.case_key, []).append(series)
    several = [
        segments
        for segments in by_case.values()
        if sum(len(of.observations) for of in segments) >= _FEWEST
    ]
    several.sort(key=lambda of: -sum(len(part.observations) for part in of))
    shown = several[:MOST_CHARTS]
    return Histories(
        cases=tuple(_case(segments, place) for place, segments in enumerate(shown)),
        num_single=len(by_case) - len(several),
        num_left_out=len(several) - len(shown),
        reasons=found.left_out,
    )


def _letter(place: int) -> str:
    return f"M{place + 1}"


def _case(segments: Sequence[Series], index: int) -> CaseHistory:
    """Joins the segments of one case: one per machine class, in order of time."""
    ordered = sorted(segments, key=lambda of: of.observations[0].date)
    seen = sorted(
        (
            (observation, place)
            for place, series in enumerate(ordered)
            for observation in series.observations
        ),
        key=lambda pair: (pair[0].date, pair[0].study),
    )
    first = ordered[0]
    title = f"{first.workload} {first.preset}, {first.case}"
    return CaseHistory(
        title=title,
        unit=seen[0][0].throughput.unit,
        drawing=_draw(seen, len(ordered), slug=f"history-{index}", title=title),
        rows=tuple(_row(observation, place) for observation, place in seen),
        machines=tuple(
            (_letter(place), f"{series.machine_name} ({series.machine[:8]})")
            for place, series in enumerate(ordered)
        ),
    )


def _draw(
    seen: Sequence[tuple[Observation, int]], number: int, *, slug: str, title: str
) -> Markup:
    drawn = []
    for machine in range(number):
        own = [(x, of) for x, (of, place) in enumerate(seen) if place == machine]
        drawn.append(
            over_replicas.Line(
                label=_letter(machine) if number > 1 else "",
                series=machine % _NUM_COLORS,
                is_joined=False,
                dots=tuple(_dot(x, of) for x, of in own),
            )
        )
    return over_replicas.draw_over_time(
        drawn,
        dates=_labels([of.date for of, _ in seen]),
        slug=slug,
        title=f"Throughput of {title} over time",
        description="; ".join(
            f"{of.study}: {formats.significant(of.throughput.value)} "
            f"{of.throughput.unit}"
            for of, _ in seen
        ),
    )


def _labels(dates: Sequence[str]) -> list[str]:
    """Returns what tells dates apart: days of a year, or minutes of one day."""
    is_one_day = len({day(date) for date in dates}) == 1
    part = slice(len("2026-01-01T"), len("2026-01-01T00:00"))
    if not is_one_day:
        part = slice(len("2026-"), len("2026-01-01"))
    return [date[part] for date in dates]


def _dot(x: int, seen: Observation) -> over_replicas.Dot:
    figure = seen.throughput
    return over_replicas.Dot(
        x=x,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        tip=svg.of_value(
            f"{seen.study}, {day(seen.date)}",
            figure.value,
            formats.significant,
            interval=(figure.low, figure.high),
            n=figure.n,
            unit=figure.unit,
        ),
    )


def _row(seen: Observation, machine: int) -> tuple[str, ...]:
    throughput = seen.throughput
    return (
        formats.minute(seen.date),
        seen.study,
        seen.commit or formats.ABSENT,
        f"{formats.significant(throughput.value)} {throughput.unit}",
        formats.interval_if_any(throughput.low, throughput.high, formats.significant),
        _letter(machine),
    )
