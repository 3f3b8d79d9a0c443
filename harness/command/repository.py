"""The git repository that a program of the user's is in: commit, changes, files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.machine import environment
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.machine.owned_folders import Owned

MOST_CHANGED: Final = 500
"""Files that are not committed and are read for an identity."""
_TIMEOUT_SEC: Final = 60.0
NO_REPOSITORY: Final = "no git repository"


def git(
    folder: Path, *arguments: str, holds: Owned | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder of the user's repository; see ``machine.git``."""
    try:
        return environment.run_git(
            folder, *arguments, timeout_sec=_TIMEOUT_SEC, holds=holds
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
    """A working tree of the user's."""

    root: Path  # Its folder.
    commit: str  # Its commit; empty before the first.
    # Paths that differ from the commit, sorted; of untracked files, those that git does
    # not ignore, without byte code and studies.
    changed: tuple[str, ...]
    untracked: frozenset[str] = frozenset()  # Those of them that git does not know.

    def changes(self) -> dict[str, str]:
        """Returns a digest of each file that differs from the commit, by path."""
        return {
            name: _content(self.root / name, is_known=name not in self.untracked)
            for name in self.changed
        }


def find(folder: Path, left_out: Sequence[Path] = ()) -> Repository | None:
    """Returns the repository around a folder, or None."""
    found = git(folder, "rev-parse", "--show-toplevel")
    if found.returncode != 0:
        why = found.stderr.strip().partition("\n")[0]
        if "not a git repository" not in why:
            raise PlanError(
                f"git does not read the repository of {str(folder)!r}: {why[:200]};"
                " repair it, or let git trust another owner: git config --global --add"
                " safe.directory PATH"
            )
        return None
    root = Path(found.stdout.strip()).resolve()
    commit = git(root, "rev-parse", "--verify", "--quiet", "HEAD").stdout.strip()
    status = git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    if status.returncode != 0:
        raise PlanError(
            f"git status fails in {str(root)!r}: {status.stderr.strip()[:200]}; repair"
            " the repository, which identifies the program of --command"
        )
    changed, untracked = [], set()
    entries = iter(status.stdout.split("\0"))
    for entry in entries:
        if entry:
            changed.append(entry[3:])
            if entry.startswith("??"):
                untracked.add(entry[3:])
            if entry[0] in "RC":  # the next one is the old name
                changed.append(next(entries, ""))
    resolved = [path.resolve() for path in left_out]
    skipped = [path for path in resolved if not folder.resolve().is_relative_to(path)]
    changed = [
        name
        for name in changed
        if not name.endswith(".pyc")
        and not any((root / name).is_relative_to(path) for path in skipped)
    ]
    if len(changed) > MOST_CHANGED:
        raise PlanError(
            f"{len(changed)} files of {str(root)!r} are not committed, such as"
            f" {changed[0]!r}, and they identify the program of --command; at most"
            f" {MOST_CHANGED} can: add what is no source to .gitignore"
        )
    return Repository(
        root=root,
        commit=commit,
        changed=tuple(sorted(changed)),
        untracked=frozenset(untracked.intersection(changed)),
    )


def _content(path: Path, *, is_known: bool) -> str:
    """Returns a digest of a file, or what it is instead."""
    if path.is_symlink():
        return f"link {printable(str(path.readlink()))}"
    if path.is_dir():
        inner = find(path) if is_known else None
        if inner is None or inner.root != path.resolve():
            return "folder"  # of another repository, which this one does not know
        state = " ".join((inner.commit, *map(str, inner.changes().items())))
        return f"submodule {hashlib.blake2b(state.encode(), digest_size=8).hexdigest()}"
    try:
        mode = " x" if os.access(path, os.X_OK) else ""
        return f"{digest_of_file(path)}{mode}"
    except (FileNotFoundError, NotADirectoryError):
        return "removed"
    except PermissionError:
        return "not readable"  # nor by the program, which is of the same user


def digest_of_file(path: Path) -> str:
    """Returns 16 hexadecimal characters, a digest of the content of a file."""
    hasher = hashlib.blake2b(digest_size=8)
    try:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                hasher.update(chunk)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise
    except OSError as error:
        raise PlanError(
            f"cannot read {str(path)!r}, which identifies the program of --command:"
            f" {error.strerror}; repeat the command when it can be read"
        ) from error
    return hasher.hexdigest()
