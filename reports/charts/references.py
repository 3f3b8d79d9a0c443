"""Published points on the figure of parallel efficiency, as light marks with letters.

Only series with a throughput on one device have an efficiency. The table under the
figure (``templates/references.html.j2``) has all points, also those without one and
those beyond the axis, and says how their definitions differ.
"""

from __future__ import annotations

import dataclasses
import string
from typing import TYPE_CHECKING

from reports.charts.drawing import labels, svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from reports.view.reference_points import Source
    from results.records.models import ScalingMode

STEP = 0.13
"""Marks of one number of devices stand this many doublings apart, to the left."""
LETTER_GAP = 0.075
"""Smallest distance of two letters in the margin, as a fraction of the axis."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishedMark:
    """One published point.

    Attributes:
      letter: Names its series in the figure and in the table; "" without an efficiency.
      series: Device and precision.
      num_devices: As published.
      examples_per_sec: As published.
      efficiency: Against one device of the same series; None without one.
      mode: Scaling mode; None where the source does not say.
      source: Its place in the list of sources, from 0.
    """

    letter: str
    series: str
    num_devices: int
    examples_per_sec: float
    efficiency: float | None
    mode: ScalingMode | None
    source: int


def marks(sources: Sequence[Source]) -> tuple[PublishedMark, ...]:
    """Returns all points of some sources; series with an efficiency have letters."""
    return tuple(_marks(sources))


def _marks(sources: Sequence[Source]) -> Iterator[PublishedMark]:
    num_letters = 0
    for place, source in enumerate(sources):
        for series in source.series:
            letter = ""
            if len(series.examples_per_sec) > 1 and 1 in series.examples_per_sec:
                letter = _letter(num_letters)
                num_letters += 1
            for num_devices, rate in sorted(series.examples_per_sec.items()):
                yield PublishedMark(
                    letter=letter,
                    series=series.name,
                    num_devices=num_devices,
                    examples_per_sec=rate,
                    efficiency=series.efficiency(num_devices),
                    mode=source.mode,
                    source=place,
                )


def _letter(number: int) -> str:
    """Returns a, b, ..., z, aa, ab, ..."""
    more, rest = divmod(number, len(string.ascii_lowercase))
    return (_letter(more - 1) if more else "") + string.ascii_lowercase[rest]


def _drawn(
    sources: Sequence[Source], mode: ScalingMode, sizes: Sequence[int]
) -> Iterator[tuple[PublishedMark, float]]:
    """Yields the marks within the axis of a panel, and their efficiency."""
    for mark in marks(sources):
        is_within = min(sizes) <= mark.num_devices <= max(sizes)
        if mark.efficiency is None or mark.mode is not mode or mark.num_devices == 1:
            continue  # of one device it is 1 by definition
        if is_within:
            yield mark, mark.efficiency


def draw(
    axes: Axes, sources: Sequence[Source], mode: ScalingMode, sizes: Sequence[int]
) -> None:
    """Draws the published efficiencies of a scaling mode behind the measured ones.

    Args:
      axes: Those of parallel efficiency over replicas.
      sources: What to show; nothing is drawn without.
      mode: The scaling mode of the panel.
      sizes: Numbers of replicas on its axis.
    """
    num_at: dict[int, int] = {}
    ends: dict[str, float] = {}
    for mark, efficiency in _drawn(sources, mode, sizes):
        num_at[mark.num_devices] = num_at.get(mark.num_devices, 0) + 1
        place = mark.num_devices * 2 ** (-STEP * num_at[mark.num_devices])
        axes.plot(
            [place],
            [efficiency],
            marker="_",
            markersize=7,
            markeredgewidth=1.1,
            color=svg.MUTED,
            zorder=1,
        )
        ends[mark.letter] = efficiency
    low, high = axes.get_ylim()
    letters = sorted(ends, key=lambda letter: (ends[letter], letter))
    heights = [LETTER_GAP * (high - low)] * len(letters)
    places = labels.spread([ends[of] for of in letters], heights, low, high)
    for letter, height in zip(letters, places, strict=True):
        axes.annotate(
            letter,
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=svg.MUTED,
            annotation_clip=False,
        )


def describe(sources: Sequence[Source], mode: ScalingMode, sizes: Sequence[int]) -> str:
    """Describes the marks of a panel in words; "" without any."""
    found = [
        f"{mark.letter} ({mark.series}) {formats.percent(efficiency)} at"
        f" {formats.count(mark.num_devices, 'device')}"
        for mark, efficiency in _drawn(sources, mode, sizes)
    ]
    return f" Published: {', '.join(found)}." if found else ""
