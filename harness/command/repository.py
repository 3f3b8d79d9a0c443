"""The git repository that a program of the user's is in: commit, changes, files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Final

from harness.errors import PlanError

_TIMEOUT_SEC: Final = 60.0
NO_REPOSITORY: Final = "no git repository"


def git(
    folder: Path, *arguments: str, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder, without locks, hooks, and variables of an outer command.

    Raises:
      PlanError: There is no git, or it does not end.
    """
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null"]
    command += ["-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            env=variables | {"GIT_TERMINAL_PROMPT": "0"},
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=_TIMEOUT_SEC,
        )
    except FileNotFoundError as error:
        raise PlanError(
            "git is not installed, and identifies the program of --command; install it"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PlanError(
            f"git {arguments[0]} takes more than {_TIMEOUT_SEC:g} s in"
            f" {str(folder)!r}; look at the repository"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A working tree of the user's.

    Attributes:
      root: Its folder.
      commit: Its commit; empty before the first.
      changed: Paths that differ from the commit, untracked files included, sorted.
    """

    root: Path
    commit: str
    changed: tuple[str, ...]

    @property
    def digest_of_changes(self) -> str:
        """A digest of what differs from the commit; empty if nothing does."""
        if not self.changed:
            return ""
        hasher = hashlib.blake2b(digest_size=8)
        for name in self.changed:
            hasher.update(os.fsencode(name) + b"\0")
            hasher.update(_content(self.root / name) + b"\0")
        return hasher.hexdigest()


def find(folder: Path) -> Repository | None:
    """Returns the repository around a folder, or None.

    Raises:
      PlanError: There is no git, or the repository is damaged.
    """
    found = git(folder, "rev-parse", "--show-toplevel")
    if found.returncode != 0:
        return None
    root = Path(found.stdout.strip())
    commit = git(root, "rev-parse", "--verify", "--quiet", "HEAD").stdout.strip()
    status = git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    if status.returncode != 0:
        raise PlanError(
            f"git status fails in {str(root)!r}: {status.stderr.strip()[:200]}; repair"
            " the repository, which identifies the program of --command"
        )
    changed = []
    entries = iter(status.stdout.split("\0"))
    for entry in entries:
        if entry:
            changed.append(entry[3:])
            if entry[0] in "RC":  # the next one is the old name
                changed.append(next(entries, ""))
    return Repository(root=root, commit=commit, changed=tuple(sorted(changed)))


def _content(path: Path) -> bytes:
    """Returns a digest of a file, or what it is instead."""
    if path.is_symlink():
        return b"link " + os.fsencode(path.readlink())
    if path.is_dir():
        return b"folder"  # a submodule: its commit is what git compares
    try:
        mode = "x" if os.access(path, os.X_OK) else ""
        return f"{digest_of_file(path)}{mode}".encode()
    except OSError:
        return b"removed"


def digest_of_file(path: Path) -> str:
    """Returns 16 hexadecimal characters, a digest of the content of a file.

    Raises:
      OSError: It cannot be read.
    """
    hasher = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            hasher.update(chunk)
    return hasher.hexdigest()
