"""The distribution of step times: the share of steps that take at most so long."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from reports.charts.drawing import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

WIDTH, HEIGHT = 300, 215
NUM_QUANTILES: Final = 101

MOST_OF_MEDIAN: Final = 3.0
"""Steps that take longer than this many times the longest median are counted only."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The steps of one case."""

    label: str  # Name of the case.
    batch: int  # Examples per replica.
    series: int  # Colour.
    dash: str  # As matplotlib names it; separates cases of one colour.
    times_sec: tuple[float, ...]  # All steps; at least one.


def _describe(samples: Sequence[Sample]) -> str:
    parts = []
    for sample in samples:
        low, middle, high = np.percentile(sample.times_sec, (5, 50, 95))
        parts.append(
            f"{sample.label}, batch {sample.batch}: median "
            f"{formats.seconds(float(middle))}, nine tenths "
            f"{formats.seconds(float(low))} to {formats.seconds(float(high))}"
        )
    return f"{'; '.join(parts)}."


def draw(samples: Sequence[Sample], *, slug: str) -> Markup:
    """Draws one line per sample, each named beside its upper end."""
    medians = [float(np.median(sample.times_sec)) for sample in samples]
    most = 1000 * MOST_OF_MEDIAN * max(medians)
    shares = np.linspace(0.0, 1.0, NUM_QUANTILES)
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        longest = 0.0
        for sample in samples:
            # Quantiles that were observed: every one is a step.
            times = 1000 * np.quantile(sample.times_sec, shares, method="inverted_cdf")
            longest = max(longest, min(float(times[-1]), most))
            axes.plot(
                times,
                shares,
                color=svg.SERIES[sample.series],
                linewidth=1.6,
                linestyle=sample.dash,
                drawstyle="steps-post",
            )
        axes.set_xlim(0, longest * 1.03 or 1.0)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
        axes.set_xlabel("step time in ms")
        # By duration, so that the order of the names is that of the lines.
        order = sorted(range(len(samples)), key=lambda k: -medians[k])
        named = [
            svg.Label(
                text=f"{samples[k].label}\n"
                f"batch {samples[k].batch}, {formats.seconds(medians[k])}",
                value=(place + 0.5) / len(order),
                color=svg.SERIES[samples[k].series],
            )
            for place, k in enumerate(order)
        ]
        svg.write_label(axes, named, HEIGHT, has_lines=False)
        return svg.inline(
            figure,
            slug=slug,
            title="Distribution of step times",
            description=_describe(samples),
        )
