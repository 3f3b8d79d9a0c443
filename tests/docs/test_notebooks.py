"""Every notebook of the documents runs, cell by cell, as a user would run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
TIMEOUT_SEC = 300

# One interpreter per notebook; the code of a cell is compiled under its number, so
# that a traceback says which one it was.
_RUNNER = """
import json, sys
namespace = {"__name__": "__main__"}
for number, code in enumerate(json.load(sys.stdin)):
    exec(compile(code, f"cell {number}", "exec"), namespace)
"""

pytestmark = pytest.mark.processes


def cells_of(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def run(cells, folder):
    return subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
        },
        timeout=TIMEOUT_SEC,
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path):
    """In its folder, with what the package requires and nothing else."""
    cells = cells_of(path)
    done = run(cells, path.parent)

    assert 0 == done.returncode, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_output(path):
    """Output would become old, and could show what is private."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]

    assert 4 == notebook["nbformat"]
    assert all(cell["outputs"] == [] for cell in code)
    assert all(cell["execution_count"] is None for cell in code)
