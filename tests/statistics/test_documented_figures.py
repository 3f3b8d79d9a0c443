"""Documented tables on measuring that can be calculated are what the code gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.judging import power
from results.statistics import estimates

ROOT = Path(__file__).resolve().parents[2]
METHOD = "docs/measuring.md"
DETAILS = "docs/archive/measuring-details.md"
DELTA = 0.05


def _rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the rows of the table of a document whose first heading is given."""
    text = (ROOT / document).read_text(encoding="utf-8")
    table = text.split(f"\n| {heading} |", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


@pytest.mark.parametrize(("document", "num_rows"), [(METHOD, 3), (DETAILS, 5)])
def test_operating_points(document: str, num_rows: int) -> None:
    """Pass and regress at four slowdowns, to the digits that are written."""
    rows = _rows(document, "generations | no change: pass")
    assert len(rows) == num_rows
    for number, *cells in rows:
        rule = power.design(delta=DELTA, alpha=0.05, num_generations=int(number))
        same, two, five, eight = power.operating_points(
            0.03, [0, 0.02, 0.05, 0.08], rule
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
    rows = _rows(DETAILS, "spread between generations")
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
