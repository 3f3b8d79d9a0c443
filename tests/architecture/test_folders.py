"""A folder holds what a reader can take in at once."""

from __future__ import annotations

import collections
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 25


def test_no_folder_has_more_modules_than_a_reader_can_take_in() -> None:
    """Packages of more files are divided by what their files are for."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    modules = collections.Counter(
        str(Path(path).parent) for path in listed if not path.endswith("__init__.py")
    )
    assert {f: n for f, n in modules.items() if n > MOST_FILES} == {}
