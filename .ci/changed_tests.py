"""Prints the test files that a change is most likely to break, one a line.

    python .ci/changed_tests.py [REVISION]

A change is what differs from the revision, by default the last commit of main before
it, and files that git does not track yet. A product file is tested by the folder of
tests with its name (``reports/page/x.py``: ``tests/reports/page``, or the nearest
above) and by tests that import it. Everything else is left to ``make test``.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = "tests/docs"


def changed(revision: str | None, root: Path = ROOT) -> list[str]:
    """Returns the paths that differ from a revision, with those that are gone."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(
            ("git", *words), cwd=root, check=True, capture_output=True, text=True
        )
        return done.stdout.splitlines()

    if revision is None:
        (revision,) = git("merge-base", "HEAD", "main")
    listed = git("diff", "--name-only", "--no-renames", revision)
    return sorted({*listed, *git("ls-files", "--others", "--exclude-standard")})


@functools.cache
def imported(path: Path) -> set[str]:
    """Returns the names of modules that a file may import, wherever it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def chosen_tests(paths: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Returns the files and folders to run for changed paths, sorted."""
    found: set[Path] = set()
    modules: set[str] = set()
    for path in map(Path, paths):
        if path.parts[0] == "tests":
            is_test = path.name.startswith("test_") and path.suffix == ".py"
            found.add(path if is_test else path.parent)
        elif path.suffix == ".md":
            found.add(Path(DOCUMENTS))
        elif path.suffix == ".py" and len(path.parts) > 1:
            name = path.with_suffix("") if path.stem != "__init__" else path.parent
            modules.add(".".join(name.parts))
            found.add("tests" / path.parent)
    files = [path.relative_to(root) for path in root.glob("tests/**/test_*.py")]
    chosen = {f for f in files if modules & imported(root / f)} if modules else set()
    for named in found:
        path = named
        while not (root / path).exists() or path == Path("tests/support"):
            path = path.parent
        if path != Path("tests"):  # what all tests share: make test
            chosen |= {f for f in files if f == path or path in f.parents}
    return sorted(chosen)


if __name__ == "__main__":
    for test in chosen_tests(changed(*(sys.argv[1:] or [None]))):
        print(test)
