"""How often change points are false, and how often a change is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from results.statistics.change_points import change_points

ROOT = Path(__file__).resolve().parents[2]
NUM_SERIES = 2_000
# Four standard errors of a share of 1 % of so many series.
NOISE = 0.009


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
def test_a_series_without_a_change_seldom_shows_one(length: int) -> None:
    """At most 1 % under independent normal noise; and what the document says."""
    size = (NUM_SERIES, length)
    generator = np.random.default_rng(length)
    found = [
        share_with_changes(generator.standard_normal(size)),
        share_with_changes(generator.standard_t(3, size)),
        share_with_changes(drifting(generator, size)),
    ]
    expected = documented("studies in the series")[length]

    assert found[0] <= 0.01 + NOISE
    assert expected == pytest.approx(found, abs=0.02 + NOISE)


def test_looks_after_every_study_raise_few_false_alarms() -> None:
    """At most 0.1 per series of 100 studies; with the penalty alone it was 1.1."""
    num_series = 300
    alarms = 0
    for values in np.random.default_rng(7).standard_normal((num_series, 100)):
        was_shown = False
        for number in range(8, 101):
            is_shown = bool(change_points(list(values[:number])))
            alarms += is_shown and not was_shown
            was_shown = is_shown

    assert alarms / num_series <= 0.1 + 2 * (0.1 / num_series) ** 0.5


def test_the_interval_of_a_change_holds_the_truth() -> None:
    """Of changes by 2.5 deviations that are found within three studies."""
    generator = np.random.default_rng(9)
    covered = []
    for values in generator.standard_normal((400, 40)):
        values[20:] += 2.5
        covered += [
            point.difference.low <= 2.5 <= point.difference.high
            for point in change_points(list(values))
            if abs(point.start - 20) <= 3
        ]

    assert len(covered) > 200
    assert np.mean(covered) >= 0.93


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
