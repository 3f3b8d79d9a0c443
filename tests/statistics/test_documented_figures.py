"""The tables of docs/measuring.md that can be calculated are what the code gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.judging import power
from results.statistics import estimates

ROOT = Path(__file__).resolve().parents[2]
DELTA = 0.05


def _rows(heading: str) -> list[list[str]]:
    """Cells of the rows of the table whose first heading is given."""
    text = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    table = text.split(f"\n| {heading} |", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_operating_points() -> None:
    """Pass and regress at four slowdowns, to the digits that are written."""
    rows = _rows("generations")
    assert len(rows) == 5
    for number, *cells in rows:
        same, two, five, eight = power.operating_points(
            0.03, int(number), DELTA, [0, 0.02, 0.05, 0.08]
        )
        expected = (
            same.passes,
            same.regresses,
            two.regresses,
            five.passes,
            five.regresses,
            eight.regresses,
        )
        for cell, value in zip(cells, expected, strict=True):
            # A digit may be rounded either way.
            unit = 10 ** -len(cell.partition(".")[2])
            assert value == pytest.approx(float(cell), abs=0.6 * unit)


def test_generations_that_are_needed() -> None:
    """By spread and true slowdown."""
    rows = _rows("spread between generations")
    assert len(rows) == 3
    for spread, *cells in rows:
        needs = power.needed(
            [0, 0.02, 0.05, 0.06, 0.08, 0.10],
            spread=float(spread),
            minutes_per_generation=1,
        )
        assert [int(cell) for cell in cells] == [n.num_generations for n in needs]


@pytest.mark.parametrize(
    ("n", "expected"), [(3, 4.30), (4, 3.18), (5, 2.78), (10, 2.26)]
)
def test_quantiles(n: int, expected: float) -> None:
    """Those of the section on the interval."""
    assert expected == pytest.approx(estimates.student_quantile(n - 1), abs=0.006)
