"""Studies that differ in one setting, in one folder; and studies in zip files.

``runs/<name>/vary.json`` has the setting and the studies in order, each a folder
``<setting>-<value>``. ``value_of`` reads the value in the study's own records.
"""

from __future__ import annotations

import contextlib
import io
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from results import errors
from results.records.models import Plan, ScalingMode
from results.records.record_base import Line, Name, Record, Text
from results.store import study_store, untrusted
from results.store.study_store import PLAN_NAME, TRIALS_NAME, VARIED_NAME, Store

MOST_VALUES: Final = 100
DATA: Final = "data"
PER_REPLICA: Final = "per-replica-batch-size"
GLOBAL: Final = "global-batch-size"

Folder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class Varied(Record):
    """Studies that differ in one setting."""

    schema_version: Literal[6] = 6
    key: Line  # ``data``, a batch size, or an option of the workload.
    # Their folders, in the order of the values.
    studies: Annotated[tuple[Folder, ...], Field(min_length=1, max_length=MOST_VALUES)]
    created_at: Name
    command: tuple[Text, ...] = Field(max_length=10_000)


def read(root: Path) -> Varied | None:
    return study_store.read_record(root / VARIED_NAME, "vary", Varied)


def write(root: Path, varied: Varied) -> None:
    Store(root).write_listed(VARIED_NAME, varied)


def stores(root: Path, varied: Varied) -> list[Store]:
    return [
        Store.open(root / name)
        for name in varied.studies
        if untrusted.is_there(root / name / PLAN_NAME)
    ]


def value_of(plan: Plan, key: str) -> str:
    """The value of the setting that a study was made with, as a user writes it."""
    values: list[Any] = [trial.spec.data for trial in plan.trials]
    if key in (PER_REPLICA, GLOBAL):
        mode = ScalingMode.WEAK if key == PER_REPLICA else ScalingMode.STRONG
        specs = [trial.spec for trial in plan.trials if mode in trial.modes]
        values = [getattr(spec, key.replace("-", "_")) for spec in specs]
    elif key != DATA:
        options = [trial.spec.options for trial in plan.trials]
        values = [each[key] for each in options if key in each]
    # As a user writes them.
    texts = (str(v).lower() if isinstance(v, bool) else str(v) for v in values)
    unique = list(dict.fromkeys(texts))
    if len(unique) != 1:
        raise errors.ResultsError(
            f"study {plan.study!r} has {len(unique)} values of {key!r}"
            f" ({', '.join(unique[:3])}), and a study of a parameter sweep has one; "
            f"remove it from {VARIED_NAME}, or run the sweep again with another --study"
        )
    return unique[0]


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
    """Yields the folder of a study, given that, a folder around it, or a zip of it.

    The files of a zip, such as the ``records.zip`` of a page, are unpacked until the
    block ends. Raises ResultsError for a zip that holds no study, or several.
    """
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
        study = _study_in(root)
        if study == root and not _is_study(root):
            number = len(untrusted.folders_with(root, PLAN_NAME))
            raise errors.ResultsError(
                f"{str(path)!r} holds {f'{number} studies' if number else 'no study'},"
                f" must hold one (a folder with {PLAN_NAME}); give the records.zip of"
                " a page, or unpack it and name a study"
            )
        yield study


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
    folders = untrusted.folders_with(folder, PLAN_NAME)
    return folders[0] if len(folders) == 1 else folder


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
    files: dict[str, zipfile.ZipInfo] = {}
    for info in file.infolist():
        name = PurePosixPath(info.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in info.filename:
            raise untrusted.DamagedFileError(f"{info.filename!r} leads out of it")
        if info.is_dir():
            continue
        if str(name) in files:
            raise untrusted.DamagedFileError(f"{info.filename!r} is in it twice")
        files[str(name)] = info
    size = sum(info.file_size for info in files.values())
    if len(files) > MOST_FILES or size > MOST_BYTES:
        raise untrusted.DamagedFileError(
            f"{len(files)} files of {size / _MEBIBYTE:.0f} MiB, at most {MOST_FILES} of"
            f" {MOST_BYTES / _MEBIBYTE:.0f} MiB are read"
        )
    return files
