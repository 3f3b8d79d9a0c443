"""How the verdicts of real gates are counted."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

RUNNER = runpy.run_path(str(Path(__file__).with_name("run_own_gates.py")))
EQUAL, PLANTED = RUNNER["EQUAL"], RUNNER["PLANTED"]
row, summary = RUNNER["row"], RUNNER["summary"]


@pytest.mark.parametrize(
    ("equal", "planted", "code", "text"),
    [
        (["pass"] * 5, ["regress"] * 5, 0, "planted: 5 of 5 right [0.48, 1.00]: 5 reg"),
        (["pass", "improve"], ["regress"] * 2, 0, "equal: 2 of 2 right"),
        (["pass", None], ["regress"] * 2, 3, "1 pass, 1 no verdict"),
        (["pass"], ["inconclusive"], 3, "planted: 0 of 1 right"),
        (["regress"], ["inconclusive"], 1, "equal: 0 of 1 right"),
        (["pass"], ["pass"], 1, "planted: 0 of 1 right"),
    ],
)
def test_verdicts_are_counted_by_what_is_true(
    equal: list[str | None], planted: list[str | None], code: int, text: str
) -> None:
    """A wrong one outweighs one that says nothing."""
    lines, found = summary({EQUAL: equal, PLANTED: planted})

    assert code == found
    assert text in "\n".join(lines)


def test_a_gate_is_shown_with_its_interval() -> None:
    """Or without one, where nothing was measured."""
    slowdown = {"value": 1.1, "low": 1.08, "high": 1.13, "n": 8}
    found = {"verdict": "regress", "cases": [{"slowdown": slowdown}]}

    assert "planted 3: regress: +10.0% [+8.0%, +13.0%], n = 8" == row(PLANTED, 3, found)
    assert "equal 0: no verdict: no interval" == row(
        EQUAL, 0, {"verdict": None, "cases": [{"slowdown": None}]}
    )


def test_the_repository_is_made_in_an_empty_folder(tmp_path: Path) -> None:
    """Also where that is there already; each commit has a tag."""
    RUNNER["make_repository"](tmp_path, 0.1)

    tags = sorted(path.name for path in (tmp_path / ".git/refs/tags").iterdir())
    assert ["base", EQUAL, PLANTED] == tags
    assert "WORK = 330000" in (tmp_path / "program.py").read_text()
