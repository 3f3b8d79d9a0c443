"""The folder for temporary files of a trial's processes, which ends with the trial.

A process that is killed cannot remove its own: TensorFlow, for one, writes a file for
each function that AutoGraph converts, and removes them at exit. The name follows from
the trial's directory, so that the same trial finds what an earlier run of it left; what
no trial finds is removed as in ``harness/machine/owned_folders.py``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from harness.errors import StudyError
from harness.machine import owned_folders

VARIABLE: Final = "TMPDIR"
_held: dict[Path, owned_folders.Owned] = {}


def folder_of(trial_dir: os.PathLike[str]) -> Path:
    """Returns the folder, beside those of other programs: studies may be far away."""
    name = os.fsencode(os.path.realpath(trial_dir))
    digest = hashlib.blake2b(name, digest_size=10).hexdigest()
    return Path(tempfile.gettempdir()) / f"{owned_folders.TRIAL}{digest}"


def make(trial_dir: os.PathLike[str]) -> None:
    """Makes it anew, for this user only."""
    remove(trial_dir)
    folder = folder_of(trial_dir)
    try:
        folder.mkdir(mode=0o700)
        _held[folder] = owned_folders.Owned(folder)
    except OSError as error:
        raise StudyError(
            f"cannot make {str(folder)!r} for temporary files of a trial:"
            f" {error.strerror}; remove it, or set TMPDIR to another folder"
        ) from error


def remove(trial_dir: os.PathLike[str]) -> None:
    """Removes it with all that is in it; harmless if it does not exist."""
    folder = folder_of(trial_dir)
    if folder in _held:
        _held.pop(folder).remove()
    shutil.rmtree(folder, ignore_errors=True)
