"""Every Python block of the documents runs, in order, as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 600
EXAMPLE_STUDY = "example"

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FOLDERS = ("docs", "harness", "replicator", "reports", "results", "workloads")

# One interpreter per document: blocks build on one another, and the first replicator of
# a document may still split the CPU into virtual devices.
_RUNNER = """
import sys
path, *numbers = sys.argv[1:]
namespace = {"__name__": "__main__"}
for number, code in zip(numbers, sys.stdin.read().split("\\0"), strict=True):
    padded = "\\n" * int(number) + code
    exec(compile(padded, path, "exec"), namespace)
"""

pytestmark = pytest.mark.processes


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Returns the number of lines before each Python block, and its code."""
    return [
        (text[: match.start("code")].count("\n"), match["code"])
        for match in _BLOCK.finditer(text)
    ]


def documents_with_code() -> list[str]:
    """Returns the Markdown files of the project that have Python blocks."""
    paths = [*ROOT.glob("*.md")]
    for folder in _FOLDERS:
        paths += (ROOT / folder).rglob("*.md")
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted(paths)
        if python_blocks(path.read_text(encoding="utf-8"))
    ]


def run_document(path: str, text: str, folder: Path) -> Any:
    """Runs the blocks of a document in a fresh interpreter."""
    blocks = python_blocks(text)
    return subprocess.run(
        [sys.executable, "-c", _RUNNER, path, *(str(number) for number, _ in blocks)],
        input="\0".join(code for _, code in blocks),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        timeout=TIMEOUT_SEC,
    )


@pytest.fixture
def folder_with_study(tmp_path: Path, synthetic: Any) -> Path:
    """A folder in which ``runs/example`` is a study."""
    synthetic.make_store(tmp_path / "runs" / EXAMPLE_STUDY)
    return tmp_path


@pytest.mark.parametrize("path", documents_with_code())
def test_the_code_of_a_document_runs(path: str, folder_with_study: Path) -> None:
    """A failing line is reported with the document's own line number."""
    text = (ROOT / path).read_text(encoding="utf-8")
    done = run_document(path, text, folder_with_study)

    assert done.returncode == 0, done.stderr


def test_the_documents_that_promise_code_have_some() -> None:
    """The search above is not empty by accident."""
    assert {"replicator/README.md", "results/README.md"} <= set(documents_with_code())


def test_a_broken_block_is_named_by_document_and_line(tmp_path: Path) -> None:
    """The runner fails where a document does, and says where."""
    text = "# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```\n"
    done = run_document("broken.md", text, tmp_path)

    assert done.returncode == 1
    assert 'File "broken.md", line 10' in done.stderr


def test_blocks_of_other_languages_are_not_run() -> None:
    """Shell commands are for people."""
    assert python_blocks("```\nmake sweep\n```\n```sh\nmake test\n```\n") == []
