"""All Python blocks and notebooks of the documents run, as a user would run them."""

import json
import os
import re
import shutil
from pathlib import Path

import case_cluster
import fork_server
import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 600

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

# Runs one document: blocks build on one another, and the first replicator of a document
# may still split the CPU into virtual devices. Clusters that it starts fork their
# processes. A traceback has the document's own line numbers.
PROGRAM = """
import json, os, sys
from pathlib import Path

document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
os.chdir(document["folder"])
sys.path[0] = document["root"]  # as of whoever reads it, not the folder of this file
from replicator.cluster import local_cluster

class ForkedCluster(local_cluster.LocalCluster):
    def __init__(self, argv, **options):
        super().__init__([*document["python"], *argv[1:]], **options)

local_cluster.LocalCluster = ForkedCluster
namespace = {"__name__": "__main__"}
for number, code in document["blocks"]:  # later ones see what earlier ones define
    exec(compile("\\n" * number + code, document["name"], "exec"), namespace)
"""

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


def run_blocks(name, blocks, folder, scratch):
    """Runs code in a process of its own, in a folder; its exit code and output."""
    task, program = scratch / "document.json", scratch / "document_blocks.py"
    program.write_text(PROGRAM)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        **case_cluster.ENV,
        "MPLBACKEND": "Agg",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    server = fork_server.server(**case_cluster.ENV)
    with fork_server.standing_in(server, scratch) as python:
        document = {
            "root": str(ROOT),
            "name": name,
            "blocks": blocks,
            "folder": str(folder),
            "python": python,
        }
        task.write_text(json.dumps(document))
        return server.run(
            [str(program), str(task)],
            env=env,
            log=scratch / "document.log",
            timeout_sec=TIMEOUT_SEC,
        )


@pytest.mark.parametrize("path", documents_with_code())
def test_the_code_of_a_document_runs(path, tmp_path, synthetic):
    """Beside ``runs/example``, a small study, and its ``records.zip``.

    A failing line has its own number.
    """
    shape = synthetic.Shape(modes=(synthetic.WEAK,), repeats=2)
    synthetic.make_store(tmp_path / "runs" / "example", shape)
    shutil.make_archive(str(tmp_path / "records"), "zip", tmp_path / "runs")
    blocks = python_blocks((ROOT / path).read_text(encoding="utf-8"))
    code, output = run_blocks(path, blocks, tmp_path, tmp_path)

    assert 0 == code, output


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.name
)
def test_a_notebook_runs(path, tmp_path):
    """In its folder; kept without output, which would become old or show secrets."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = [(0, "".join(cell["source"])) for cell in cells]
    code, output = run_blocks(path.name, blocks, path.parent, tmp_path)

    assert 0 == code, output
    assert output.strip()
    assert 4 == notebook["nbformat"]
    assert all(cell["outputs"] == [] for cell in cells)
    assert all(cell["execution_count"] is None for cell in cells)
