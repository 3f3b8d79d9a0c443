"""Charts, sparklines and ratios: axes, places of marks, text that is escaped."""

from __future__ import annotations

import re

import pytest

from reports.site import chart, ratio_bar, sparkline
from reports.words import formats
from results.statistics.estimates import Estimate


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.05, [0, 0.25, 0.5, 0.75, 1.0, 1.25]),
        (0.0, 14.9, [0, 5, 10, 15]),
        (6.2, 7.7, [6, 6.5, 7, 7.5, 8]),
        (5.0, 5.0, [5.0]),
    ],
)
def test_ticks_are_round_and_include_both_ends(
    low: float, high: float, expected: list[float]
) -> None:
    """At least two, also where all values are equal."""
    found = chart.ticks(low, high)

    assert len(found) >= 2
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    assert pytest.approx(expected) == found[: len(expected)]


def test_replicas_are_linear_up_to_sixteen() -> None:
    """Beyond, doublings are equally far apart; the value axis begins at zero."""
    few = chart.of_replicas([1, 2, 4, 16], [1.0], write=formats.percent)
    many = chart.of_replicas([1, 2, 4, 64], [1.0], write=formats.percent)

    assert 0.0 == few.low == many.low
    assert pytest.approx(few.across(4) - few.across(2)) == 2 * (
        few.across(2) - few.across(1)
    )
    assert pytest.approx(many.across(4) - many.across(2)) == many.across(
        2
    ) - many.across(1)


def test_a_single_number_of_replicas_is_in_the_middle() -> None:
    """There is no line to draw, and no division by zero."""
    frame = chart.of_replicas([4], [1.0], write=formats.percent)

    assert chart.LEFT < frame.across(4) < chart.WIDTH - chart.RIGHT


def draw(*lines: chart.Line) -> str:
    """Draws lines over 1 and 2 replicas."""
    values = [dot.value for line in lines for dot in line.dots]
    frame = chart.of_replicas([1, 2], values, write=formats.percent)
    return str(chart.draw(frame, lines, slug="x", title="a<b", description="c<d"))


def line(label: str, *values: float) -> chart.Line:
    """Returns a line of one value per number of replicas."""
    dots = tuple(chart.Dot(x=x, value=value) for x, value in enumerate(values, start=1))
    return chart.Line(label=label, series=0, dots=dots)


def test_labels_of_equal_lines_are_not_over_one_another() -> None:
    """Each has its own height, in the margin."""
    text = draw(line("first", 1.0, 0.9), line("second", 1.0, 0.9))
    found = re.findall(r'y="([\d.]+)" text-anchor="start"', text)
    heights = sorted(map(float, found))

    assert 2 == len(heights)
    assert heights[1] - heights[0] >= chart.LINE_HEIGHT


def test_text_is_escaped_and_long_labels_are_shortened() -> None:
    """Names come from records."""
    text = draw(line("<script>alert(1)</script>", 1.0))

    assert "<script" not in text
    assert "a&lt;b</title>" in text
    assert "c&lt;d</desc>" in text
    assert "&lt;script\N{HORIZONTAL ELLIPSIS}</text>" in text


def test_every_text_of_a_chart_is_at_least_eleven_pixels_on_a_phone() -> None:
    """A chart fills 358 of 390 pixels."""
    assert chart.FONT_SIZE * 358 / chart.WIDTH >= 11


def test_a_sparkline_begins_at_zero_and_keeps_what_exceeds_it() -> None:
    """Efficiency above the upper edge is drawn at it."""
    text = str(sparkline.draw([(1, 1.0), (2, 9.0)], series=3, label='a "b"'))
    (y,) = re.findall(r'cy="([\d.]+)"', text)

    assert float(y) == sparkline.MARGIN
    assert 'aria-label="a &#34;b&#34;"' in text
    assert "var(--series-3)" in text


def estimate(value: float, low: float | None, high: float | None) -> Estimate:
    """Returns a ratio."""
    return Estimate(value=value, low=low, high=high, n=4, unit="", method="")


@pytest.mark.parametrize(
    ("values", "reach", "ends"),
    [
        ((1.01, 0.99), 1.05, ("0.95", "1.05")),
        ((1.0, 0.8), 1.5, ("0.67", "1.5")),
        ((50.0,), 10.0, ("0.1", "10")),
    ],
)
def test_the_axis_of_ratios_is_centred_on_one(
    values: tuple[float, ...], reach: float, ends: tuple[str, str]
) -> None:
    """A ratio and its inverse are equally far from its middle."""
    found = ratio_bar.reach(estimate(value, None, None) for value in values)

    assert reach == found
    assert ends == ratio_bar.ends(found)


def test_ratios_that_hold_stand_out() -> None:
    """Muted otherwise; an interval without end stops at the edge."""
    differs = str(ratio_bar.draw(estimate(1.2, 1.1, 1.3), 1.5, is_marked=True))
    endless = estimate(1.2, 0.0, float("inf"))
    unclear = str(ratio_bar.draw(endless, 1.5, is_marked=False))

    assert "var(--accent)" in differs
    assert "var(--accent)" not in unclear
    assert "M4.0 10.0H156.0" in unclear
