"""What tools of the project make is not checked by its other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", [".venv", "runs", "build", ".hypothesis"])
def test_the_spelling_of_what_is_made_is_not_checked(folder: str) -> None:
    """The scripts of the site in ``build`` failed the check after ``make docs``."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["codespell"]
    ignored = (ROOT / ".gitignore").read_text().split()

    assert f"{folder}/" in ignored
    assert folder in options["skip"].split(",")
