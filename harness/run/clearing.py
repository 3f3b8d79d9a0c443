"""Makes room for the next attempt at a trial, where an earlier one left something."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from harness.errors import StudyError
from harness.run import scratch
from harness.trial import checkpoints, process_tree
from results.store import earlier, fence, untrusted

if TYPE_CHECKING:
    from pathlib import Path

    from results.store.earlier import Before


def clear(trial_dir: Path, before: Before | None = None) -> None:
    """Ends the processes of an earlier attempt; keeps what it measured elsewhere.

    What it measured is moved (``results.store.earlier``); what measured nothing, or is
    no folder of a trial, is removed. ``before`` is told of a move first.
    """
    if not untrusted.is_there(trial_dir):
        return
    fence.check(trial_dir)
    process_tree.kill_tree(os.path.realpath(trial_dir))
    try:
        scratch.remove(trial_dir)
        if trial_dir.is_symlink() or not trial_dir.is_dir():
            # A symbolic link: its target is not ours and stays.
            trial_dir.unlink()
        elif earlier.is_measured(trial_dir):
            if not untrusted.is_there(trial_dir / "status.json"):
                checkpoints.remove(trial_dir)  # large, and of no use to a failure
            earlier.keep(trial_dir, before)
        else:
            shutil.rmtree(trial_dir)
    except OSError as error:
        raise StudyError(
            f"cannot move {str(trial_dir)!r} of an earlier run out of the way:"
            f" {error.strerror or error}; move or remove it by hand"
        ) from error
