"""Errors of the store; every message says what to do."""

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
    """A required record does not exist."""


class CorruptRecordError(ResultsError):
    """A record exists and cannot be read."""

    def __init__(self, path: pathlib.Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"corrupt record {str(path)!r}: {reason}; the other records stay readable: "
            "restore this one from a copy, or remove its folder and measure it again"
        )

    @property
    def label(self) -> str:
        """Folder and file name, printable and valid UTF-8."""
        return repr(f"{self.path.parent.name}/{self.path.name}")[1:-1]


class UnavailableRecordError(ResultsError):
    """A file that may be there, and cannot be read now; nothing follows from that."""

    def __init__(self, path: pathlib.Path, error: OSError) -> None:
        super().__init__(
            f"cannot read {str(path)!r}: {error.strerror or error}; nothing was "
            "changed: repeat the command when this user can read it"
        )


class NewerSchemaError(ResultsError):
    def __init__(self, path: pathlib.Path, version: int, supported: int) -> None:
        super().__init__(
            f"{str(path)!r} was written by a newer version (schema {version}, this "
            f"reads up to {supported}): upgrade replicator-harness"
        )


class OlderSchemaError(ResultsError):
    def __init__(self, path: pathlib.Path, version: int, supported: int) -> None:
        super().__init__(
            f"{str(path)!r} was written by an older version (schema {version}, this "
            f"reads {supported}): read it with the release that wrote it, or measure "
            "again under another study name"
        )


class StudyLockedError(ResultsError):
    def __init__(self, root: pathlib.Path, pid: int | None) -> None:
        self.pid = pid
        user = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"study {str(root)!r} is in use by {user}: wait until it ends, stop it, "
            "or choose another study name"
        )


class StudyLostError(ResultsError):
    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(
            f"study {str(root)!r} was taken over by a process of another machine, since"
            " this one gave no sign of life, as when it is suspended: it writes no more"
            " there; when the other has ended, run the same command again"
        )


class StudyInUseElsewhereError(ResultsError):
    def __init__(self, root: pathlib.Path, age_sec: float, dead_sec: float) -> None:
        super().__init__(
            f"study {str(root)!r} is in use by a process of another machine, which "
            f"gave a sign of life {age_sec:.0f} s ago: wait until it ends (if it was "
            f"killed, {dead_sec:.0f} s), stop it, or choose another study name"
        )
