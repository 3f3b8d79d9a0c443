"""Sparklines and ratios: axes, places of marks, text that is escaped."""

import re

import pytest

from reports.site import ratio_bar, sparkline
from results.statistics.estimates import Estimate


def test_a_sparkline_begins_at_zero_and_keeps_what_exceeds_it():
    """Efficiency above the upper edge is drawn at it."""
    text = str(sparkline.draw([(1, 1.0), (2, 9.0)], series=3, label='a "b"'))
    (y,) = re.findall(r'cy="([\d.]+)"', text)

    assert float(y) == sparkline.MARGIN
    assert 'aria-label="a &#34;b&#34;"' in text
    assert "var(--series-3)" in text


def estimate(value, low, high):
    return Estimate(value=value, low=low, high=high, n=4, unit="", method="")


@pytest.mark.parametrize(
    ("values", "reach", "ends"),
    [
        ((1.01, 0.99), 1.05, ("0.95", "1.05")),
        ((1.0, 0.8), 1.5, ("0.67", "1.5")),
        ((50.0,), 10.0, ("0.1", "10")),
    ],
)
def test_the_axis_of_ratios_is_centred_on_one(values, reach, ends):
    """A ratio and its inverse are equally far from its middle."""
    found = ratio_bar.reach(estimate(value, None, None) for value in values)

    assert reach == found
    assert ends == ratio_bar.ends(found)


def test_ratios_that_hold_stand_out():
    """Muted otherwise; an interval without end stops at the edge."""
    differs = str(ratio_bar.draw(estimate(1.2, 1.1, 1.3), 1.5, is_marked=True))
    endless = estimate(1.2, 0.0, float("inf"))
    unclear = str(ratio_bar.draw(endless, 1.5, is_marked=False))

    assert "var(--accent)" in differs
    assert "var(--accent)" not in unclear
    assert "M4.0 10.0H156.0" in unclear
