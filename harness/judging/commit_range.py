"""The commits between a good and a bad one, of the user's repository."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from harness.command import repository
from harness.errors import RevisionError
from results.records.limits import MAX_TRIALS

if TYPE_CHECKING:
    from pathlib import Path

    from harness.command.repository import Repository

OPTION: Final = "--bisect"
GOOD: Final = "GOOD"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CommitRange:
    """A history.

    Attributes:
      good: The commit that others are judged beside.
      commits: After it, oldest first; the last is the bad one. Of a merge, the history
        of the branch that it was merged into.
      trees: What each of them has in its files, by commit; that of the good one too.
    """

    good: str
    commits: tuple[str, ...]
    trees: dict[str, str]


def source_of(folder: Path, runs_dir: Path) -> Repository:
    """Returns the user's repository around a folder, without what is not committed.

    Raises:
      RevisionError: There is none.
    """
    found = repository.find(folder, [runs_dir])
    if found is None:
        raise RevisionError(
            f"{OPTION}: {str(folder)!r} is not in a git repository, so it has no"
            " history; go to the repository of the program"
        )
    return dataclasses.replace(found, changed=())


def read(source: Repository, good: str, bad: str) -> CommitRange:
    """Returns the commits between two revisions.

    Raises:
      RevisionError: One does not exist, or the bad one does not come after the good.
    """
    first, last = (_commit(source, revision) for revision in (good, bad))
    if first == last:
        raise RevisionError(
            f"{OPTION} {good!r} {bad!r}: both are commit {first[:12]}, so nothing is"
            " between them; give an older commit that is good, then one that is bad"
        )
    git = repository.git
    is_older = git(source.root, "merge-base", "--is-ancestor", first, last)
    if is_older.returncode != 0:
        raise RevisionError(
            f"{OPTION} {good!r} {bad!r}: {good!r} is no ancestor of {bad!r}; give the"
            " good commit first, and one of the same history"
        )
    listed = git(
        source.root,
        *("log", "--first-parent", "--reverse", "--format=%H %T", f"{first}..{last}"),
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    if len(rows) > MAX_TRIALS:
        raise RevisionError(
            f"{OPTION} {good!r} {bad!r}: {len(rows)} commits are between them, at most"
            f" {MAX_TRIALS} can be; give a later good commit"
        )
    tree = git(source.root, "rev-parse", f"{first}^{{tree}}").stdout.strip()
    return CommitRange(
        good=first,
        commits=tuple(commit for commit, _ in rows),
        trees={first: tree, **dict(rows)},
    )


def subject(source: Repository, commit: str) -> str:
    """Returns the first line of the message of a commit."""
    shown = repository.git(source.root, "show", "--no-patch", "--format=%s", commit)
    return shown.stdout.strip()


def _commit(source: Repository, revision: str) -> str:
    wanted = f"{revision}^{{commit}}"
    found = repository.git(
        source.root, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted
    )
    if found.returncode != 0:
        raise RevisionError(
            f"{OPTION}: {revision!r} is no revision of {str(source.root)!r}; 'git log'"
            " shows which there are"
        )
    return found.stdout.strip()
