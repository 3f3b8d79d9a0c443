"""Repositories of git that tests make."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_WHO = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")


def git(root: Path, *arguments: str) -> str:
    """Runs git as nobody in particular; returns what it prints."""
    return subprocess.run(
        ["git", *_WHO, "-c", "protocol.file.allow=always", *arguments],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(root: Path, name: str) -> None:
    """Commits all that is there, and tags it."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", name)
    git(root, "tag", name)
