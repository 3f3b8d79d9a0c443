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

from harness.command.numbers import Place
from harness.command.reader import FileTail, Reading, ReadingError, counters, number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.command.numbers import Metric

MOST_BYTES: Final = 2**26


class MetricFile:
    """The file of a trial, and what it was before the program started."""

    def __init__(self, metric: Metric, path: Path) -> None:
        self._metric, self._path = metric, path
        self._where = f"the file {path.name!r} of --metric"
        self._written, self._before = 0, b""
        with contextlib.suppress(OSError, ReadingError):
            self._written = path.stat().st_mtime_ns
            before = content(path)
            numbers(metric, before, path.name)
            self._before = before
        self._tail = FileTail(path, self._written)
        self._beginning, self._num_taken = 0, 0
        self._timed: list[Reading] | None = []

    def look(self, now_ns: int) -> int:
        """Looks at what the program has written; returns how many numbers are there."""
        self._tail.look(now_ns)
        self._take_lines()
        return len(self._timed or ())

    def _take_lines(self) -> None:
        """Reads the lines that are new, each by itself."""
        if self._tail.num_beginnings != self._beginning:
            self._beginning, self._num_taken = self._tail.num_beginnings, 0
            self._timed = []
        lines = self._tail.lines
        for index in range(self._num_taken, len(lines)):
            ns, line = lines[index]
            is_csv = self._metric.file_kind == "csv"
            is_head = is_csv and index == 0
            if self._timed is not None and line.strip() and not is_head:
                text = lines[0][1] + b"\n" + line if is_csv else line
                try:
                    found = _numbers(self._metric, text, self._path.name)
                except ReadingError:  # a document of several lines, or said by read()
                    self._timed = None
                else:
                    where = self._where
                    others = counters(line.decode(errors="replace"))
                    self._timed += [
                        Reading(ns, value, where, others) for value in found
                    ]
        self._num_taken = len(lines)

    def read(self) -> list[Reading]:
        """Returns the numbers that the program wrote.

        Each has its time if it was in a line of its own, so that it was seen to come.
        """
        now = content(self._path)
        found = numbers(self._metric, now, self._path.name)
        if self._path.stat().st_mtime_ns == self._written:
            raise ReadingError(
                f"the file {self._path.name!r} of --metric was there before the program"
                " started, which did not write it; let it do so in each run"
            )
        if self._before and now != self._before and now.startswith(self._before):
            raise ReadingError(
                f"the file {self._path.name!r} of --metric has the numbers of a run"
                " before as well, since the program writes behind them; let it begin"
                " anew, or write into {output_dir}"
            )
        self._tail.end()
        self._take_lines()
        timed = self._timed or []
        if [reading.value for reading in timed] == found:
            return timed
        return [Reading(0, value, self._where) for value in found]


def content(path: Path) -> bytes:
    """Returns what is in a file."""
    where = f"the file {path.name!r} of --metric"
    try:
        facts = path.stat()
        if facts.st_size > MOST_BYTES:
            raise ReadingError(
                f"{where} has more than {MOST_BYTES // 2**20} MiB; write numbers only"
            )
        if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for
            raise ReadingError(f"{where} is not a regular file; write one")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ReadingError(
            f"{where} was not written: {error.strerror}; paths are relative to where"
            " the program starts, or begin with {output_dir}"
        ) from error
    except OSError as error:
        raise ReadingError(
            f"{where} cannot be read: {error.strerror}; repeat the trial with --retry"
            " failed when it can"
        ) from error


def numbers(metric: Metric, text: bytes, name: str) -> list[float]:
    """Returns the numbers in a file, in order."""
    found = _numbers(metric, text, name)
    if not found:
        raise ReadingError(
            f"the file {name!r} of --metric has no number {metric.key!r}; name one"
            " that it has"
        )
    return found


def _numbers(metric: Metric, text: bytes, name: str) -> list[float]:
    where = f"the file {name!r} of --metric"
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadingError(f"{where} is not UTF-8 text: {error}") from error
    try:
        of_kind = _columns if metric.file_kind == "csv" else _members
        found = [*of_kind(decoded, metric.key, where)]
    except csv.Error as error:
        raise ReadingError(
            f"{where} is not CSV: {error}; write numbers only"
        ) from error
    except RecursionError as error:
        raise ReadingError(
            f"{where} is nested too deeply; write numbers only"
        ) from error
    return [
        number(Place(text, 0), where, "--metric", metric.quantity, metric.notation)
        for text in (
            value if isinstance(value, str) else repr(value) for value in found
        )
    ]


def _columns(text: str, key: str, where: str) -> Iterator[str]:
    head = text.partition("\n")[0]
    separator = next((one for one in ",;\t" if key in _names(head, one)), ",")
    names = _names(head, separator)
    if names.count(key) != 1:
        what = f"{names.count(key)} columns" if key in names else "no column"
        raise ReadingError(
            f"{where} has {what} {key!r}; it has {', '.join(names)[:200] or 'none'}"
        )
    column = names.index(key)
    rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    next(rows, None)
    yield from (row[column] for row in rows if len(row) > column and row[column])


def _names(head: str, separator: str) -> list[str]:
    rows = csv.reader([head], delimiter=separator, skipinitialspace=True)
    return [name.strip() for name in next(rows, [])]


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
        yield from _follow(document, key, where)


def _follow(value: Any, key: str, where: str) -> list[Any]:
    """Returns what a key leads to; its dots may be of names, or between them."""
    if isinstance(value, list):
        return [found for member in value for found in _follow(member, key, where)]
    if not key:
        return [value]
    if not isinstance(value, dict):
        return []
    ends = [index for index, one in enumerate(key + ".") if one == "."]
    found = [
        _follow(value[key[:end]], key[end + 1 :], where)
        for end in ends
        if key[:end] in value
    ]
    ways = [way for way in found if way]
    if len(ways) > 1:
        raise ReadingError(
            f"{where} has {key!r} in {len(ways)} ways, since names have dots; rename"
            " one of them"
        )
    return ways[0] if ways else []
