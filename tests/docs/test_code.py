"""All Python blocks and notebooks of the documents run, as a user would run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import case_cluster
import covering
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


def run_document(name, text, folder, *, is_forked=True):
    """Runs the blocks of a document in a process of its own, in a folder."""
    task, log = folder / "document.json", folder / "document.log"
    document = {
        "root": str(ROOT),
        "name": name,
        "blocks": python_blocks(text),
        "folder": str(folder),
        "is_forked": is_forked,
    }
    task.write_text(json.dumps(document))
    argv = [str(PROGRAM), str(task)]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, **case_cluster.ENV, "PYTHONPATH": os.pathsep.join(paths)}
    if is_forked:
        server = fork_server.server(**case_cluster.ENV)
        return server.run(argv, env=env, log=log, timeout_sec=TIMEOUT_SEC)
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, *argv],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            env=env,
            timeout=TIMEOUT_SEC,
        ).returncode
    return code, log.read_text(encoding="utf-8")


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
    code, output = run_document(
        path, text, folder_with_study, is_forked=not covering.is_full()
    )

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


def cells_of(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def run_cells(cells, folder):
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
        timeout=300,
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path):
    """In its folder, with what the package requires and nothing else."""
    cells = cells_of(path)
    done = run_cells(cells, path.parent)

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
