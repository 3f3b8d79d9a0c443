"""What can be wrong with a store; every message says what to do.

::

    ValueError
      ResultsError              base of everything a user can cause or repair
        OpenStoreError          the path is no study directory
        WriteStoreError         the study directory cannot be written
        MissingRecordError      a record that must be there is not
        CorruptRecordError      a record cannot be read (has .path and .reason)
        NewerSchemaError        a record was written by a newer version
        StudyLockedError        another process works on this study (has .pid)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib


class ResultsError(ValueError):
    """Base of the errors a user can cause or repair."""


class OpenStoreError(ResultsError):
    """The path does not hold a study."""


class WriteStoreError(ResultsError):
    """The study directory cannot be created or written."""


class MissingRecordError(ResultsError):
    """A record that must exist does not."""


class CorruptRecordError(ResultsError):
    """A record exists and cannot be read.

    Attributes:
      path: The record's file.
      reason: One line saying what is wrong with it.
    """

    def __init__(self, path: pathlib.Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"corrupt record {str(path)!r}: {reason}; the other records stay readable: "
            "restore this one from a copy, or remove its folder and measure it again"
        )


class NewerSchemaError(ResultsError):
    """A record was written by a newer version of the program."""

    def __init__(self, path: pathlib.Path, version: int, supported: int) -> None:
        super().__init__(
            f"{str(path)!r} was written by a newer version (schema {version}, this "
            f"reads up to {supported}): upgrade replicator-harness"
        )


class StudyLockedError(ResultsError):
    """Another process works on the study.

    Attributes:
      pid: Process id of the holder, or None if it has not said yet.
    """

    def __init__(self, root: pathlib.Path, pid: int | None) -> None:
        self.pid = pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"study {str(root)!r} is in use by {holder}: wait until it ends, stop it, "
            "or choose another study name"
        )
