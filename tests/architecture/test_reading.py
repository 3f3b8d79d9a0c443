"""Files that anybody may have made are read by one module."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READER = "results/store/untrusted.py"
OURS = {
    "harness/cli/documents.py": "the README of this tree",
    "harness/cli/main.py": "opens the null device",
    "harness/cli/study_file.py": "a file that the user names, with messages of its own",
    "harness/judging/program_revisions.py": "files of a checkout of the user's",
    "harness/judging/revisions.py": "files of a checkout of this tree",
    "harness/sources/code_digest.py": "sources of this tree",
    "harness/sources/plugin_code.py": "sources of packages that are imported",
    "reports/page/page.py": "styles and scripts of this tree",
    "reports/site/assets.py": "styles and scripts of this tree",
    "reports/view/reference_points.py": "published figures of this tree",
    "results/store/atomic.py": "opens only to sync",
    "results/store/heartbeat.py": "the identity of this kernel, and its own file",
}
FOLDERS = (
    "results",
    "reports",
    "harness/cli",
    "harness/judging",
    "harness/planning",
    "harness/sources",
)


def _reads(tree: ast.AST) -> list[int]:
    """Returns the lines that open a file to read it."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else ""
        owner = called.value if isinstance(called, ast.Attribute) else None
        if isinstance(called, ast.Name):
            name = called.id
        is_store = isinstance(owner, ast.Name) and owner.id in {"Store", "untrusted"}
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        is_writing = any(isinstance(m, str) and set(m) & set("wxa") for m in modes)
        is_read = name in {"read_text", "read_bytes"}
        if not is_store and (is_read or (name == "open" and not is_writing)):
            found.append(node.lineno)
    return found


def test_files_of_others_are_read_by_one_module() -> None:
    """It tells absent, damaged and unavailable apart; nothing else may guess."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    places = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted(paths)
        if (lines := _reads(ast.parse(path.read_text(encoding="utf-8"))))
    }

    assert places.pop(READER)
    assert set(OURS) == set(places), "read it with results.store.untrusted"
