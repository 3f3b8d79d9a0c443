"""Studies in zip files, as pages link them: unpacked to be read, then removed."""

from __future__ import annotations

import contextlib
import io
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from results import errors
from results.store import untrusted
from results.store.study_store import PLAN_NAME, TRIALS_NAME, VARIED_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES: Final = 8 * untrusted.MAX_BYTES
"""Of all files of a zip, unpacked; the zip itself is a file as any other."""
MOST_FILES: Final = 1_000_000
_MEBIBYTE: Final = 2**20
_IN_STUDIES: Final = (PLAN_NAME, TRIALS_NAME, VARIED_NAME)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # a compression that Python does not know
    RuntimeError,  # a password
    ValueError,  # names or times that cannot be
)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yields the folder of a study, given that, a folder around it, or a zip of it."""
    if not stat.S_ISREG(_mode(path)):
        yield _study_in(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            _unpack(path, root)
        except OSError as error:
            raise errors.ResultsError(
                f"{str(path)!r} cannot be unpacked into {tempfile.gettempdir()!r}:"
                f" {error.strerror or error}; name another folder as TMPDIR"
            ) from error
        found = _study_in(root)
        if found == root and not _is_study(root):
            number = len(untrusted.folders_with(root, PLAN_NAME))
            raise errors.ResultsError(
                f"{str(path)!r} holds {f'{number} studies' if number else 'no study'},"
                f" must hold one (a folder with {PLAN_NAME}); give the records.zip of"
                " a page, or unpack it and name a study"
            )
        yield found


def _mode(path: Path) -> int:
    """Returns what a path is; 0 where whoever opens it says why it is nothing."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _is_study(folder: Path) -> bool:
    return not untrusted.names_in(folder).isdisjoint(_IN_STUDIES)


def _study_in(folder: Path) -> Path:
    """Returns the only study in a folder that is none itself, else the folder."""
    if not stat.S_ISDIR(_mode(folder)) or _is_study(folder):
        return folder
    found = untrusted.folders_with(folder, PLAN_NAME)
    return found[0] if len(found) == 1 else folder


def _unpack(path: Path, root: Path) -> None:
    """Writes the files of a zip into an empty folder."""
    try:
        content = untrusted.read_bytes(path)
        with zipfile.ZipFile(io.BytesIO(content or b"")) as file:
            for name, info in _files(file).items():
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read(info))
    except (untrusted.DamagedFileError, *_DAMAGED) as error:
        if isinstance(error, errors.ResultsError):  # the file system does not answer
            raise
        raise errors.ResultsError(
            f"{str(path)!r} is no zip file of a study: {error}; give a study, its"
            " folder, or the records.zip of its page, downloaded again"
        ) from error


def _files(file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Returns the files of a zip by their names, which stay below its folder."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in file.infolist():
        name = PurePosixPath(info.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in info.filename:
            raise untrusted.DamagedFileError(f"{info.filename!r} leads out of it")
        if info.is_dir():
            continue
        if str(name) in found:
            raise untrusted.DamagedFileError(f"{info.filename!r} is in it twice")
        found[str(name)] = info
    size = sum(info.file_size for info in found.values())
    if len(found) > MOST_FILES or size > MOST_BYTES:
        raise untrusted.DamagedFileError(
            f"{len(found)} files of {size / _MEBIBYTE:.0f} MiB, at most {MOST_FILES} of"
            f" {MOST_BYTES / _MEBIBYTE:.0f} MiB are read"
        )
    return found
