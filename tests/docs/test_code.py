"""All Python blocks and notebooks of the documents run, as a user would run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import case_cluster
import fork_server
import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 600

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

# Runs one document: blocks build on one another, and the first replicator of a document
# may still split the CPU into virtual devices.
PROGRAM = Path(__file__).with_name("document_blocks.py")

pytestmark = pytest.mark.processes


def python_blocks(text):
    return [
        (text[: match.start("code")].count("\n"), match["code"])
        for match in _BLOCK.finditer(text)
    ]


def documents_with_code():
    paths = [*ROOT.glob("*.md")]
    for folder in ("docs", "harness", "replicator", "reports", "results", "workloads"):
        paths += (ROOT / folder).rglob("*.md")
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted(paths)
        if python_blocks(path.read_text(encoding="utf-8"))
    ]


def run_document(name, text, folder):
    """Runs the blocks of a document in a process of its own, in a folder."""
    task = folder / "document.json"
    document = {
        "root": str(ROOT),
        "name": name,
        "blocks": python_blocks(text),
        "folder": str(folder),
    }
    task.write_text(json.dumps(document))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, **case_cluster.ENV, "PYTHONPATH": os.pathsep.join(paths)}
    return fork_server.server(**case_cluster.ENV).run(
        [str(PROGRAM), str(task)],
        env=env,
        log=folder / "document.log",
        timeout_sec=TIMEOUT_SEC,
    )


@pytest.fixture
def folder_with_study(tmp_path, synthetic):
    """A folder in which ``runs/example`` is a small study."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), repeats=2)
    synthetic.make_store(tmp_path / "runs" / "example", shape)
    return tmp_path


@pytest.mark.parametrize("path", documents_with_code())
def test_the_code_of_a_document_runs(path, folder_with_study):
    """A failing line is reported with the document's own line number."""
    text = (ROOT / path).read_text(encoding="utf-8")
    code, output = run_document(path, text, folder_with_study)

    assert 0 == code, output


NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))

# One interpreter per notebook; the code of a cell is compiled under its number, so
# that a traceback says which one it was.
_RUNNER = """
import json, sys
namespace = {"__name__": "__main__"}
for number, code in enumerate(json.load(sys.stdin)):
    exec(compile(code, f"cell {number}", "exec"), namespace)
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path):
    """In its folder, with what the package requires; kept without output.

    That would become old, and could show what is private.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(["".join(cell["source"]) for cell in code]),
        capture_output=True,
        text=True,
        check=False,
        cwd=path.parent,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(paths)},
        timeout=300,
    )

    assert 0 == done.returncode, done.stderr
    assert done.stdout.strip()
    assert 4 == notebook["nbformat"]
    assert all(cell["outputs"] == [] for cell in code)
    assert all(cell["execution_count"] is None for cell in code)
