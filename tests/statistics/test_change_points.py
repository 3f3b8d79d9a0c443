"""How often change points are false, and how often a change is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from results.statistics.change_points import change_points

ROOT = Path(__file__).resolve().parents[2]
NUM_SERIES = 2_000
# Four standard errors of a share of 5 % of so many series.
NOISE = 0.02


def share_with_changes(values: np.ndarray) -> float:
    """Returns the share of rows that show a change."""
    return float(np.mean([bool(change_points(list(row))) for row in values]))


def documented(heading: str) -> dict[int, list[float]]:
    """Returns a table of the details of measuring: numbers by the first column."""
    text = (ROOT / "docs/archive/measuring-details.md").read_text(encoding="utf-8")
    table = text.split(f"\n| {heading} |", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {int(first): [float(cell) for cell in cells] for first, *cells in rows}


def drifting(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Returns normal numbers of which neighbours correlate by 0.3."""
    values = generator.standard_normal(size)
    for index in range(1, size[1]):
        values[:, index] *= (1 - 0.3**2) ** 0.5
        values[:, index] += 0.3 * values[:, index - 1]
    return values


@pytest.mark.parametrize("length", [8, 12, 20, 50, 100])
def test_one_series_in_twenty_without_a_change_shows_one(length: int) -> None:
    """At most 5 % under independent normal noise; and what the document says."""
    size = (NUM_SERIES, length)
    generator = np.random.default_rng(length)
    found = [
        share_with_changes(generator.standard_normal(size)),
        share_with_changes(generator.standard_t(3, size)),
        share_with_changes(drifting(generator, size)),
    ]
    expected = documented("studies in the series")[length]

    assert 0.02 <= found[0] <= 0.05 + NOISE
    assert expected == pytest.approx(found, abs=0.05)


@pytest.mark.parametrize("length", [8, 12, 20])
def test_changes_are_found_as_documented(length: int) -> None:
    """A step before the last four studies, in deviations of a study."""
    expected = documented("studies, the last four changed")[length]
    found = []
    for step in (2, 3, 4, 6):
        values = np.random.default_rng(length).standard_normal((500, length))
        values[:, -4:] += step
        found.append(share_with_changes(values))

    assert expected == pytest.approx(found, abs=0.08)
