"""Reads numbers from the lines or the file of a program, each with its time."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final

from harness.command import numbers
from harness.command.numbers import Meaning, NumberError
from harness.command.running import MOST_COLUMNS, CommandError, TerminalLine
from harness.errors import PlanError
from harness.trial.measure import exact_metric
from results.records.models import MetricFacts
from results.records.record_base import MAX_METRICS
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from results.records.program import Program


class ReadingError(ValueError):
    """Output that says nothing clear; its detail shows the place in lines."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


OWN_ERRORS: Final = (CommandError.__name__, ReadingError.__name__)
"""Errors of the command, and not of the machine."""


SHOWN: Final = 120  # Characters of a line or number that a message shows.
_BEFORE: Final = 60  # Characters before a number that a message shows.
_WHOLE = re.compile(
    r"(?:(?P<word>[^\W\d_]+)[^\w\n]{0,4})?(?<![\w.,:+\-])(?P<number>[0-9]{1,15})"
    r"(?![\w:]|[.,][0-9])"
)
_MOST_COUNTERS: Final = 20
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<|\(\?|\(|\)", re.DOTALL)
_NO_NUMBER: Final = (
    r"(?:(?i:[-+]?(?:nan|inf|infinity|none|null|n/a)\b|[-+]?\u221e|[-\u2013\u2014]+)"
    r"|[-+\u2212]?[.,]?\d\S*?{empty}){end}"
)
_PER = re.compile(
    r"(?P<gap>(?:\\s| )?[*+?]?)(?P<first>[a-z\u00b5]+)/(?P<second>[a-z\u00b5]+)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    # When it was printed, in nanoseconds; 0 of a file that was not seen to grow.
    ns: int
    value: float  # In the unit of the metric.
    # The line or the file, for messages.
    where: str = dataclasses.field(default="", compare=False)
    # Whole numbers of the line, by the word before each and its place.
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False)

    def check_positive(self) -> None:
        if not self.value:
            raise ReadingError(
                f"{self.where} has 0, which is not a rate or a time; they are positive"
                " and finite: look at what the program did"
            )


def _number(
    text: str, where: str, meaning: Meaning, match: re.Match[str] | None = None
) -> float:
    try:
        return numbers.read(text, meaning, match)
    except NumberError as error:
        shown = printable(text[error.start : error.end])[:SHOWN]
        first = max(0, error.start - _BEFORE)
        line = printable(text[first : first + SHOWN])
        caret = " " * (error.start - first) + "^" * max(1, min(len(shown), SHOWN))
        why = f"which {error} (spellings: docs/command.md)"
        if str(error).startswith("of which"):
            why = str(error)
        elif re.fullmatch(r"[-+]?(?:nan|inf(?:inity)?)", shown, re.IGNORECASE):
            why = (
                "which is not a rate or a time; they are positive and finite: look at"
                " what the program did"
            )
        elif str(error) == "is not a number":
            why = f"which {error}; put the group of {meaning.option} around the number"
            why += " alone"
        raise ReadingError(
            f"{where} has {shown!r}, {why}", detail=f"{line}\n{caret}"
        ) from error


def counters(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for match in itertools.islice(_WHOLE.finditer(text), _MOST_COUNTERS):
        word = match["word"] or ""
        index = sum(name.startswith(f"{word} ") for name in values)
        values[f"{word} {index}"] = int(match["number"])
    return values


def advances(lines: Sequence[Mapping[str, int]]) -> list[int]:
    """Returns how far those counters have gone that never went back."""
    shared = set(lines[0]).intersection(*lines[1:]) if lines else ()
    steps = {
        lines[-1][name] - lines[0][name]
        for name in shared
        if all(a[name] <= b[name] for a, b in itertools.pairwise(lines))
    }
    return sorted(steps - {0})


class LineReader:
    """Finds the number in each line."""

    def __init__(self, pattern: re.Pattern[str], meaning: Meaning) -> None:
        self._meaning = meaning
        self._patterns, self._near = [pattern], None
        if (parts := _parts(pattern.pattern)) is not None:
            before, group, behind = parts
            self._patterns += filter(None, [_inverse(pattern, before + group, behind)])
            self._near = _near(pattern, before, behind)
        self._missed: list[str] = []  # that match but for the number
        self._num_read = 0  # that have one

    def read(self, line: str, ns: int) -> Iterator[Reading]:
        text = line[:MOST_COLUMNS]
        shown = printable(text.strip())[:SHOWN]
        found = ([*pattern.finditer(text)] for pattern in self._patterns)
        matches = next(filter(None, found), [])
        if len(matches) > 1:
            raise ReadingError(
                f"the pattern of {self._meaning.option} matches {len(matches)} times in"
                f" the line {shown!r}; add what stands before the number that you mean"
            )
        where = f"the line {shown!r}"
        whole = text + "\u2026" * (len(line) > MOST_COLUMNS)
        for match in matches:
            self._num_read += 1
            value = _number(whole, where, self._meaning, match)
            yield Reading(ns, value, where, counters(text))
        near = None if matches else self._near
        if near is not None and any(map(near.search, (text, text + " "))):
            self._missed.append(shown)

    def check_missed(self) -> None:
        """Checks that no line lacked its number, once enough has been printed."""
        if number := len(self._missed):
            raise ReadingError(
                f"{number} of {number + self._num_read} lines that"
                f" {self._meaning.option} looks for have no number, such as"
                f" {self._missed[0]!r}: what was computed there failed, or the pattern"
                " is too narrow; look at what the program did"
            )


def _parts(source: str) -> tuple[str, str, str] | None:
    """Returns what stands before, in and behind the capturing group of a pattern."""
    opened: list[int | None] = []
    for token in _GROUP.finditer(source):
        if token[0][0] == "(":
            opened.append(token.start() if token[0] in ("(", "(?P<") else None)
        elif token[0] == ")" and opened and (start := opened.pop()) is not None:
            return source[:start], source[start : token.end()], source[token.end() :]
    return None


def _replaced(pattern: re.Pattern[str], source: str) -> re.Pattern[str] | None:
    try:
        return re.compile(source, pattern.flags & ~re.UNICODE)
    except re.error:
        return None


def _near(pattern: re.Pattern[str], before: str, behind: str) -> re.Pattern[str] | None:
    """Returns what finds the lines that match but for the number; None if any would."""
    literals = [
        re.search(r"\w", re.sub(r"\\\w|\[[^\]]*\]|\(\?\w*", "", part))
        for part in (before, behind)
    ]
    is_whole = before.startswith("^") and behind.endswith("$")
    if not (any(literals) or is_whole):
        return None
    end = "" if behind else r"(?=[\s,;|)\]}]|$)"
    empty = r"|(?=\s*$)" if literals[0] and not behind.strip("$") else ""
    no_number = _NO_NUMBER.replace("{empty}", empty).replace("{end}", end)
    return _replaced(pattern, before + no_number + behind)


def _inverse(
    pattern: re.Pattern[str], before: str, behind: str
) -> re.Pattern[str] | None:
    """Returns the pattern for s/it if one asks for it/s, or the reverse."""
    per = _PER.match(behind)
    if per is None or "s" not in (per["first"], per["second"]):
        return None
    unit = f"{per['gap']}{per['second']}/{per['first']}"
    return _replaced(pattern, before + unit + behind[per.end() :])


# A count (bytes on the wire, nodes of a graph, launches) is the same in every run of
# the same code, so two of them compare exactly, on any machine. The number that is
# printed last counts.

OPTION: Final = "--count"
UNIT: Final = "count"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
_PROTOCOL: Final = "printed by the program; the number that it printed last"


def parse_count(texts: Sequence[str]) -> dict[str, tuple[re.Pattern[str], Meaning]]:
    counts: dict[str, tuple[re.Pattern[str], Meaning]] = {}
    for text in texts:
        left, equals, where = text.partition("=")
        name, meaning = numbers.declared(left, OPTION, text)
        if not equals or not where or not _NAME.fullmatch(name):
            raise PlanError(
                f"{OPTION} {text!r} is not NAME=PATTERN; write a name of letters and"
                " digits, and a regular expression that has one group, such as"
                " 'bytes=sent ([0-9]+) bytes'"
            )
        if name in counts:
            raise PlanError(f"{OPTION} {name!r} is given twice; give two names")
        counts[name] = numbers.compiled(where, OPTION, text), meaning
    if len(counts) > MAX_METRICS:
        raise PlanError(f"{len(counts)} {OPTION} are too many; give {MAX_METRICS}")
    return counts


def count_facts(texts: Sequence[str]) -> tuple[MetricFacts, ...]:
    """Returns what the counts of a program mean, as plans record it."""
    return tuple(
        MetricFacts(
            name=name,
            title=name.replace("_", " "),
            unit=UNIT,
            is_higher_better=False,
            tolerance=0.05,
            protocol=_PROTOCOL,
            is_of_window=True,
        )
        for name in parse_count(texts)
    )


class OutputReader:
    """Finds the numbers of the metric and of the counts in what a program prints."""

    def __init__(self, program: Program) -> None:
        self._streams = TerminalLine(), TerminalLine()
        metric = numbers.parse_metric(program.metric)
        self._metric = metric.pattern and LineReader(metric.pattern, metric.meaning)
        self._counts: dict[str, tuple[LineReader, list[float]]] = {
            name: (LineReader(*sought), [])
            for name, sought in parse_count(program.counts).items()
        }

    def feed(self, stream: int, chunk: bytes, ns: int) -> Iterator[Reading]:
        """Yields the numbers of the metric, and keeps those of the counts."""
        lines = [*self._streams[stream].feed(chunk)]
        for reader, values in self._counts.values():
            for line in lines:
                values.extend(found.value for found in reader.read(line, ns))
        if self._metric is not None:
            for line in lines:
                yield from self._metric.read(line, ns)

    def check_missed(self) -> None:
        if self._metric is not None:
            self._metric.check_missed()

    def counts(self) -> Iterator[dict[str, object]]:
        """Yields the fields of a ``window_metric`` line for each count."""
        for name, (reader, values) in self._counts.items():
            reader.check_missed()
            if not values:
                raise CommandError(
                    f"no line that the command printed matches {OPTION} {name!r}; print"
                    " it, before as many numbers as --steps asks for"
                )
            yield exact_metric(
                name, values[-1], unit=UNIT, n=len(values), protocol=_PROTOCOL
            )


# A file that a program writes: JSON, one document or one per line, or CSV. A key with
# dots goes into objects, and into each member of an array.

MOST_BYTES: Final = 2**26
POLL_SEC: Final = 0.02  # How often to look: a line is timed that exactly.
_MOST_AT_ONCE: Final = 2**20


class MetricFile:
    """The file of a trial, and what it was before the program started."""

    def __init__(self, program: Program, path: Path) -> None:
        self._metric, self._path = numbers.parse_metric(program.metric), path
        self._where = f"the file {path.name!r} of --metric"
        self._written, self._before = 0, b""
        with contextlib.suppress(OSError, ReadingError):
            self._written = path.stat().st_mtime_ns
            before = self._content()
            if self._numbers(before):
                self._before = before
        self._file, self._offset = (0, 0), 0  # what is read, and how far
        self._rest, self._rest_ns = b"", 0  # the last line, without an end so far
        self._head: bytes | None = None
        self._timed: list[Reading] | None = []

    def look(self, now_ns: int) -> int:
        """Takes the lines that are new; returns how many numbers are there.

        A file in place of it, or one that begins anew, is read from its beginning. What
        cannot be read is tried again later.
        """
        with contextlib.suppress(OSError):
            facts = self._path.stat()
            if facts.st_mtime_ns != self._written:
                file = facts.st_dev, facts.st_ino
                if file != self._file or facts.st_size < self._offset:
                    self._file, self._offset, self._rest = file, 0, b""
                    self._head, self._timed = None, []
                if facts.st_size > self._offset:
                    self._take_new(now_ns)
        return len(self._timed or ())

    def _take_new(self, now_ns: int) -> None:
        # A pipe in its place would be waited for.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            chunk = os.pread(descriptor, _MOST_AT_ONCE, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(chunk)
        self._rest_ns = now_ns
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        text = line
        if self._metric.file_kind == "csv":
            if self._head is None:
                self._head = line
                return
            text = self._head + b"\n" + line
        if self._timed is None or not line.strip():
            return
        try:
            values = self._numbers(text)
        except ReadingError:  # a document of several lines, or said by read()
            self._timed = None
            return
        others = counters(line.decode(errors="replace"))
        for value in values:
            self._timed.append(Reading(self._rest_ns, value, self._where, others))

    def read(self) -> list[Reading]:
        """Returns the numbers that the program wrote.

        Each has its time if it was in a line of its own, so that it was seen to come.
        """
        now = self._content()
        values = self._numbers(now)
        if not values:
            raise ReadingError(
                f"{self._where} has no number {self._metric.key!r}; name one that it"
                " has"
            )
        if self._path.stat().st_mtime_ns == self._written:
            raise ReadingError(
                f"{self._where} was there before the program started, which did not"
                " write it; let it do so in each run"
            )
        if self._before and now != self._before and now.startswith(self._before):
            raise ReadingError(
                f"{self._where} has the numbers of a run before as well, since the"
                " program writes behind them; let it begin anew, or write into"
                " {output_dir}"
            )
        if self._rest:  # the last line need not have an end
            self._take(self._rest)
            self._rest = b""
        timed = self._timed or []
        if [reading.value for reading in timed] == values:
            return timed
        return [Reading(0, value, self._where) for value in values]

    def _content(self) -> bytes:
        where = self._where
        try:
            facts = self._path.stat()
            if facts.st_size > MOST_BYTES:
                raise ReadingError(
                    f"{where} has more than {MOST_BYTES // 2**20} MiB; write numbers"
                    " only"
                )
            if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for
                raise ReadingError(f"{where} is not a regular file; write one")
            return self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ReadingError(
                f"{where} was not written: {error.strerror}; paths are relative to"
                " where the program starts, or begin with {output_dir}"
            ) from error
        except OSError as error:
            raise ReadingError(
                f"{where} cannot be read: {error.strerror}; repeat the trial with"
                " --retry failed when it can"
            ) from error

    def _numbers(self, content: bytes) -> list[float]:
        read_all = self._column if self._metric.file_kind == "csv" else self._members
        try:
            values = [*read_all(content.decode("utf-8-sig"))]
        except UnicodeDecodeError as error:
            why = f"is not UTF-8 text: {error}"
            raise ReadingError(f"{self._where} {why}") from error
        except csv.Error as error:
            why = f"is not CSV: {error}; write numbers only"
            raise ReadingError(f"{self._where} {why}") from error
        except RecursionError as error:
            why = "is nested too deeply; write numbers only"
            raise ReadingError(f"{self._where} {why}") from error
        texts = (each if isinstance(each, str) else repr(each) for each in values)
        return [_number(text, self._where, self._metric.meaning) for text in texts]

    def _column(self, text: str) -> Iterator[str]:
        key = self._metric.key
        for separator in ",;\t,":  # the first one again, for the message
            lines = io.StringIO(text)
            rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
            names = [name.strip() for name in next(rows, [])]
            if key in names:
                break
        if names.count(key) != 1:
            what = f"{names.count(key)} columns" if key in names else "no column"
            has = ", ".join(names)[:200] or "none"
            raise ReadingError(f"{self._where} has {what} {key!r}; it has {has}")
        column = names.index(key)
        yield from (row[column] for row in rows if len(row) > column and row[column])

    def _members(self, text: str) -> Iterator[Any]:
        try:
            documents = [json.loads(text)]
        except ValueError:
            lines = filter(str.strip, text.splitlines())
            try:
                documents = [*map(json.loads, lines)]
            except ValueError as error:
                raise ReadingError(
                    f"{self._where} is not JSON: {error}; write one document, or one"
                    " per line"
                ) from error
        for document in documents:
            yield from self._follow(document, self._metric.key)

    def _follow(self, value: Any, key: str) -> list[Any]:
        """Returns what a key leads to; its dots may be of names, or between them."""
        if isinstance(value, list):
            return [found for member in value for found in self._follow(member, key)]
        if not key:
            return [value]
        if not isinstance(value, dict):
            return []
        ends = [index for index, one in enumerate(key + ".") if one == "."]
        paths = [
            self._follow(value[key[:end]], key[end + 1 :])
            for end in ends
            if key[:end] in value
        ]
        paths = [*filter(None, paths)]
        if len(paths) > 1:
            raise ReadingError(
                f"{self._where} has {key!r} in {len(paths)} ways, since names have"
                " dots; rename one of them"
            )
        return paths[0] if paths else []
