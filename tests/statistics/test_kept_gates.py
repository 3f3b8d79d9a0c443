"""Gates that were measured on a quiet machine: their records say what is documented."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main

sys.path.insert(0, str(Path(__file__).parent))

RUNNER = runpy.run_path(str(Path(__file__).with_name("run_own_gates.py")))
ROOT: Path = RUNNER["ROOT"]
KEPT = sorted((ROOT / "docs/archive/gates").glob("*.zip"))
ROW = re.compile(r"^\| ([a-z-]+) (\d+) \| (\w+) \| (.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def document() -> str:
    """The section of the document."""
    text = (ROOT / "docs/archive/claims-of-gates.md").read_text(encoding="utf-8")
    return text.partition("## Real gates on a quiet machine")[2]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_records_of_a_gate_give_the_documented_row(
    path: Path, document: str
) -> None:
    """Verdict, change, interval and n, to the digit."""
    name, _, number = path.stem.rpartition("-")
    rows = {f"{kind}-{of}": rest for kind, of, *rest in ROW.findall(document)}
    kinds = {
        kind.name: kind for kind in RUNNER["gates_with_answers"].on_a_quiet_machine()
    }
    _, verdict, change = RUNNER["row"](
        kinds[name], int(number), RUNNER["recorded"](path)
    )

    assert [verdict, change] == rows[path.stem]


def test_every_documented_gate_is_kept(document: str) -> None:
    """And the sums below the table are those of its rows."""
    rows = ROW.findall(document)
    said: dict[Any, list[str]] = {
        kind: [verdict for name, _, verdict, _ in rows if name == kind.name]
        for kind in RUNNER["gates_with_answers"].on_a_quiet_machine()
    }
    lines, code = RUNNER["summary"](said)

    assert [path.stem for path in KEPT] == sorted(f"{row[0]}-{row[1]}" for row in rows)
    assert 0 == code
    for line in lines:
        assert f"- {line}" in document


def test_verify_accepts_the_kept_records() -> None:
    """Of the smallest, every figure is recomputed from what was observed."""
    smallest = min(KEPT, key=lambda path: path.stat().st_size)
    done = CliRunner().invoke(main.cli, ["verify", str(smallest)])

    assert 0 == done.exit_code, done.output
    assert re.search(r"verified: [\d,]+ figures are as recomputed", done.output)
