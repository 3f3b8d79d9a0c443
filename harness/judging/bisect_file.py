"""The file of a bisection, ``<name>.bisect.json`` in the folder of the studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.errors import StudyError
from results.records.bisect_record import BisectRecord
from results.store import record_file

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX: Final = ".bisect.json"


def path_of(runs_dir: Path, name: str) -> Path:
    """Returns the file of a bisection."""
    return runs_dir / f"{name}{_SUFFIX}"


def begin_or_continue(path: Path, new: BisectRecord) -> BisectRecord:
    """Returns the record of what was judged before, or the new one.

    Raises:
      StudyError: The file is of another bisection.
      ResultsError: It cannot be read.
    """
    known = record_file.read(path, "bisect", BisectRecord)
    if known is None:
        return new
    if known.model_copy(update={"steps": ()}) != new:
        raise StudyError(
            f"{str(path)!r} is of another bisection: other commits, options or command;"
            " repeat its command to continue it, or choose another --study"
        )
    return known


def write(path: Path, record: BisectRecord) -> None:
    """Writes it in place of what was there.

    Raises:
      WriteStoreError: It cannot be written.
    """
    record_file.write(path, record)
