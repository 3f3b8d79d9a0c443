"""How the verdicts of real gates are counted, and what their programs are."""

import runpy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import gates_with_answers  # beside the script that runs them

RUNNER = runpy.run_path(str(Path(__file__).with_name("run_own_gates.py")))
ON_ANY = gates_with_answers.on_any_machine(0.1, 8)
EQUAL, PLANTED = ON_ANY
row, summary = RUNNER["row"], RUNNER["summary"]
SLOWER = {"value": 1.1, "low": 1.08, "high": 1.13, "n": 8}


@pytest.mark.parametrize(
    ("equal", "planted", "code", "text"),
    [
        (["pass"] * 5, ["regress"] * 5, 0, "work: 5 of 5 right [0.48, 1.00]: 5 reg"),
        (["pass", "improve"], ["regress"] * 2, 0, "equal code: 2 of 2 right"),
        (["pass", None], ["regress"] * 2, 3, "1 pass, 1 no verdict"),
        (["pass"], ["inconclusive"], 3, "10% more work: 0 of 1 right"),
        (["regress"], ["inconclusive"], 1, "equal code: 0 of 1 right"),
        (["pass"], [], 3, "10% more work: none was measured"),
        (["pass"], ["pass"], 1, "10% more work: 0 of 1 right"),
    ],
)
def test_verdicts_are_counted_by_what_is_true(equal, planted, code, text):
    """A wrong one outweighs one that says nothing."""
    lines, found = summary({EQUAL: equal, PLANTED: planted})

    assert code == found
    assert text in "\n".join(lines)


def test_a_gate_is_shown_with_its_interval():
    """Of what decided; without one where nothing was measured."""
    found = {"verdict": "regress", "cases": [{"slowdown": SLOWER}]}
    change = "+10.0% [+8.0%, +13.0%], n = 8"

    assert ("planted 3", "regress", change) == row(PLANTED, 3, found)
    nothing = {"verdict": None, "cases": [{"slowdown": None}]}
    assert ("equal 0", "no verdict", "no interval") == row(EQUAL, 0, nothing)
    of_steps = {"verdict": "regress", "slowdown": SLOWER}
    found["cases"][0]["others"] = {
        "sustained mean": of_steps,
        "tail": of_steps | {"verdict": "pass"},
    }
    assert f"{change}; sustained mean: {change}" == row(PLANTED, 3, found)[2]
    assert "too loud" == row(EQUAL, 0, nothing | {"unfit": "too loud"})[2]


def test_the_repository_is_made_in_an_empty_folder(tmp_path):
    RUNNER["make_repository"](tmp_path, list(ON_ANY))
    tags = tmp_path / ".git/refs/tags"

    assert "WORK = 330000" in (tmp_path / "program.py").read_text()
    assert {"base-equal", "equal", "base-planted", "planted"} == {
        path.name for path in tags.iterdir()
    }


def test_planted_programs_run_and_differ_from_their_base(tmp_path):
    """In what is planted, and equal ones in a comment."""
    for kind in ON_ANY:
        base, head = kind.source("base", {}), kind.source("head", kind.constants)
        for source in (base, head):
            compile(source, str(tmp_path), "exec")
        is_equal = base.splitlines()[1:] == head.splitlines()[1:]
        assert kind.is_planted is not is_equal, kind.name


def test_a_piece_starts_no_gate_once_its_time_is_over(tmp_path, monkeypatch):
    """The same command goes on, asks again what had no verdict, and shows the rest."""
    asked = []
    clock = iter(range(100))

    def judge(_, kind, number):
        asked.append(f"{kind.name} {number}")
        verdict = None if len(asked) == 2 else "pass"
        return {"verdict": verdict, "unfit": "too loud", "cases": [{"slowdown": None}]}

    of_main = RUNNER["main"].__globals__
    monkeypatch.setitem(of_main, "judge", judge)
    monkeypatch.setattr(of_main["time"], "monotonic", lambda: next(clock))
    piece = [str(tmp_path), "--gates=2", "--seconds=2"]
    ends = [RUNNER["main"](piece) for _ in range(2)]

    assert ["equal 0", "planted 0", "planted 0"] == asked
    assert [3, 1] == ends
    text = (tmp_path / "gates.md").read_text()
    assert "| equal 0 | pass |" in text
    assert "| planted 0 | pass |" in text
    assert "equal 1" not in text
