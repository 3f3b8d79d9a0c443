"""The history of a site: each case over its studies, and its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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


class CaseHistory(NamedTuple):
    """One case over time."""

    title: str  # Workload, preset and case.
    unit: str  # Of its throughput.
    drawing: Markup  # Its chart.
    # Of the table: date, study, commit, throughput, interval, machine.
    rows: list[tuple[str, ...]]
    machines: list[tuple[str, str]]  # The machine classes: letter and words.


class Histories(NamedTuple):
    """The history of all cases."""

    cases: list[CaseHistory]  # Those with two or more studies, most studies first.
    num_single: int  # How many cases have one study only.
    num_left_out: int  # How many cases have no chart because there are too many.
    reasons: tuple[str, ...]  # Why cases have no place in any series, one line each.


def histories(studies: Iterable[Study]) -> Histories:
    """Returns the history of every case that two or more studies have."""
    found = history(studies)
    by_case = formats.grouped((series.case_key, series) for series in found.series)

    def num_studies(segments: Sequence[Series]) -> int:
        return sum(len(of.observations) for of in segments)

    several = [of for of in by_case.values() if num_studies(of) >= _FEWEST]
    several.sort(key=num_studies, reverse=True)
    shown = several[:MOST_CHARTS]
    return Histories(
        cases=[_case(segments, place) for place, segments in enumerate(shown)],
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
    title = f"{ordered[0].workload} {ordered[0].preset}, {ordered[0].case}"
    lines = [
        over_replicas.Line(
            label=_letter(machine) if len(ordered) > 1 else "",
            series=machine % _NUM_COLORS,
            is_joined=False,
            dots=tuple(_dot(x, of) for x, (of, at) in enumerate(seen) if at == machine),
        )
        for machine in range(len(ordered))
    ]
    described = (f"{of.study}: {_figure(of)}" for of, _ in seen)
    return CaseHistory(
        title=title,
        unit=seen[0][0].throughput.unit,
        drawing=over_replicas.draw_over_time(
            lines,
            dates=_labels([of.date for of, _ in seen]),
            slug=f"history-{index}",
            title=f"Throughput of {title} over time",
            description="; ".join(described),
        ),
        rows=[
            (
                formats.minute(of.date),
                of.study,
                of.commit or formats.ABSENT,
                _figure(of),
                formats.interval(
                    of.throughput.low, of.throughput.high, formats.significant
                ),
                _letter(place),
            )
            for of, place in seen
        ],
        machines=[
            (_letter(place), f"{series.machine_name} ({series.machine[:8]})")
            for place, series in enumerate(ordered)
        ],
    )


def _figure(seen: Observation) -> str:
    return f"{formats.significant(seen.throughput.value)} {seen.throughput.unit}"


def _labels(dates: Sequence[str]) -> list[str]:
    """Returns what tells dates apart: days of a year, or minutes of one day."""
    is_one_day = len({day(date) for date in dates}) == 1
    part = slice(len("2026-01-01T"), len("2026-01-01T00:00"))
    if not is_one_day:
        part = slice(len("2026-"), len("2026-01-01"))
    return [date[part] for date in dates]


def _dot(x: int, seen: Observation) -> over_replicas.Dot:
    figure = seen.throughput
    tip = svg.of_value(
        f"{seen.study}, {day(seen.date)}",
        figure.value,
        formats.significant,
        interval=(figure.low, figure.high),
        n=figure.n,
        unit=figure.unit,
    )
    return over_replicas.Dot(
        x=x, value=figure.value, low=figure.low, high=figure.high, tip=tip
    )
