"""Worktrees of a gate, in temporary folders: removed after it, or by the next one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine import owned_folders

if TYPE_CHECKING:
    import subprocess
    from typing import Protocol

    class Git(Protocol):
        """Runs git in the repository that the worktrees belong to."""

        def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            """Runs one command."""


def remove(git: Git, root: Path) -> None:
    """Removes a worktree with the temporary folder that it is in."""
    # Locked until it is complete, and then neither removed nor pruned.
    git("worktree", "unlock", str(root))
    git("worktree", "remove", "--force", str(root))
    shutil.rmtree(root.parent, ignore_errors=True)
    git("worktree", "prune")


def remove_abandoned(git: Git) -> None:
    """Removes the worktrees, and other temporary folders, of gates that were killed."""
    listed = git("worktree", "list", "--porcelain").stdout
    for line in listed.splitlines():
        name, _, text = line.partition(" ")
        root = Path(text)
        if name != "worktree" or not root.parent.name.startswith(owned_folders.GATE):
            continue
        if not root.parent.exists() or owned_folders.is_abandoned(root.parent):
            remove(git, root)
    owned_folders.remove_abandoned()
