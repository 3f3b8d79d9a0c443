"""Reads the numbers of a program from a JSON or CSV file that it wrote.

A JSON file is one document, or one per line. A key with dots goes into objects, and
into each member of an array.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import stat
from typing import TYPE_CHECKING, Any, Final

from harness.command.errors import ReadingError
from harness.command.reader import Reading, number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 2**26


class MetricFile:
    """The file of a trial, and what it was before the program started.

    Args:
      kind: ``json`` or ``csv``.
      path: Of the file.
      key: Keys joined by dots, or a column.
    """

    def __init__(self, kind: str, path: Path, key: str) -> None:
        self._kind, self._path, self._key = kind, path, key
        self._written, self._before = 0, b""
        with contextlib.suppress(OSError, ReadingError):
            self._written = path.stat().st_mtime_ns
            read(kind, path, key)
            self._before = path.read_bytes()

    def read(self) -> list[Reading]:
        """Returns the numbers that the program wrote.

        Raises:
          ReadingError: It wrote none, or behind those of a run before.
        """
        found = read(self._kind, self._path, self._key)
        if self._path.stat().st_mtime_ns == self._written:
            raise ReadingError(
                f"the file {self._path.name!r} of --metric was there before the program"
                " started, which did not write it; let it do so in each run"
            )
        now = self._path.read_bytes()
        if self._before and now != self._before and now.startswith(self._before):
            raise ReadingError(
                f"the file {self._path.name!r} of --metric has the numbers of a run"
                " before as well, since the program writes behind them; let it begin"
                " anew, or write into {output_dir}"
            )
        return found


def read(kind: str, path: Path, key: str) -> list[Reading]:
    """Returns the numbers in order, without times.

    Raises:
      ReadingError: The file is missing or unreadable, or does not have the key.
    """
    where = f"the file {path.name!r} of --metric"
    try:
        facts = path.stat()
        if facts.st_size > MOST_BYTES:
            raise ReadingError(
                f"{where} has more than {MOST_BYTES // 2**20} MiB; write numbers only"
            )
        if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for
            raise ReadingError(f"{where} is not a regular file; write one")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReadingError(
            f"{where} was not written: {error.strerror}; paths are relative to where"
            " the program starts, or begin with {output_dir}"
        ) from error
    except UnicodeDecodeError as error:
        raise ReadingError(f"{where} is not UTF-8 text: {error}") from error
    try:
        found = [*(_columns if kind == "csv" else _members)(text, key, where)]
    except csv.Error as error:
        raise ReadingError(
            f"{where} is not CSV: {error}; write numbers only"
        ) from error
    except RecursionError as error:
        raise ReadingError(
            f"{where} is nested too deeply; write numbers only"
        ) from error
    if not found:
        raise ReadingError(f"{where} has no number {key!r}; name one that it has")
    return [Reading(0, number(str(value), where)) for value in found]


def _columns(text: str, key: str, where: str) -> Iterator[str]:
    rows = csv.DictReader(io.StringIO(text))
    names = rows.fieldnames or []
    if key not in names:
        raise ReadingError(
            f"{where} has no column {key!r}; it has {', '.join(names)[:200] or 'none'}"
        )
    yield from (row[key] for row in rows if row[key])


def _members(text: str, key: str, where: str) -> Iterator[Any]:
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise ReadingError(
                f"{where} is not JSON: {error}; write one document, or one per line"
            ) from error
    for document in documents:
        yield from _follow(document, key.split("."))


def _follow(value: Any, keys: list[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for member in value:
            yield from _follow(member, keys)
    elif not keys:
        yield value
    elif isinstance(value, dict) and keys[0] in value:
        yield from _follow(value[keys[0]], keys[1:])
