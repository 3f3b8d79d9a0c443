"""Writes what a report is made of, and tables as CSV, whose cells are no formulas."""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from results import errors
from results.store import writing

if TYPE_CHECKING:
    import pathlib

    import pandas as pd


def check(path: pathlib.Path, *, what: str = "") -> str:
    """Returns how messages call a file that is new or a regular one."""
    shown = f"{what} {str(path)!r}".strip()
    if path.exists() and not path.is_file():
        raise errors.WriteStoreError(
            f"cannot write {shown}: it is not a regular file, and would be replaced by"
            " one; choose another"
        )
    return shown


def write(path: pathlib.Path, content: bytes | str, *, what: str = "") -> None:
    """Writes a file that is new or a regular one, and its folder if there is none."""
    shown = check(path, what=what)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8") if isinstance(content, str) else content
        writing.write_bytes(path, data)
    except OSError as error:
        if is_new:  # its name may not be on the disk, and the same command finds none
            with contextlib.suppress(OSError):
                path.unlink()
        raise errors.WriteStoreError(
            f"cannot write {shown}: {error.strerror or error}; choose a file in a"
            " folder that this user can write to"
        ) from error


def write_all(
    folder: pathlib.Path, files: Mapping[str, bytes | str], *, what: str
) -> list[pathlib.Path]:
    """Writes files below a folder and returns their paths."""
    if folder.exists() and not folder.is_dir():
        raise errors.WriteStoreError(
            f"cannot write {what} {str(folder)!r}: it is not a directory; choose a"
            " directory"
        )
    paths = [folder / name for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        write(path, content, what=f"file of {what}")
    return paths


MOST_ROWS: Final = 3_000
"""A figure of more rows downloads its estimates only."""
_LEFT_OUT: Final = ("figure", "case", "method")
_SAFE: Final = ",/:;.-_ '()*"
_FORMULA = re.compile(r"\s*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:\d[\d.,_]*(?:[eE][+-]?\d+)?|inf|nan)\s?%?")

_QUOTED_OR_END = re.compile(r'("(?:[^"]|"")*")|\r\n')
"""Only with this end of lines does every version of Python quote a carriage return."""


def inert(value: Any) -> Any:
    """Returns a cell with an apostrophe before what would be a formula."""
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    return value if _NUMBER.fullmatch(value.strip()) else f"'{value}"


def as_csv(frame: pd.DataFrame) -> str:
    """Returns a table as CSV that no spreadsheet takes for formulas."""
    text: str = frame.map(inert).to_csv(index=False, lineterminator="\r\n")
    return _QUOTED_OR_END.sub(lambda match: match[1] or "\n", text)


def csv_link(frame: pd.DataFrame, figure: str) -> str:
    """Returns the rows of a figure without its empty columns, as a data URL; or ""."""
    rows = frame[frame["figure"] == figure]
    if len(rows) > MOST_ROWS:
        rows = rows[rows["kind"] != "repetition"].head(MOST_ROWS)
    if rows.empty:
        return ""
    shown = rows.drop(columns=list(_LEFT_OUT)).dropna(axis="columns", how="all")
    shown = shown.loc[:, ~(shown == "").all()]
    text = as_csv(shown)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(text, safe=_SAFE)}"
