"""Reads numbers from the lines or the file of a program, each with its time."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import re
import stat
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from harness.command import numbers
from harness.command.numbers import PLAIN, Notation, NumberError, Place, Quantity, read
from harness.command.running import MOST_COLUMNS, CommandError, TerminalLine
from harness.errors import PlanError
from harness.trial.measure import exact_metric
from results.records.limits import MAX_METRICS
from results.records.models import MetricFacts
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.command.numbers import Metric


class ReadingError(ValueError):
    """Output that says nothing clear; its detail shows the place in lines."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


OWN_ERRORS: Final = (CommandError.__name__, ReadingError.__name__)
"""Errors of the command, and not of the machine."""


SHOWN: Final = 120  # Characters of a line or number that a message shows.
_BEFORE: Final = 60  # Characters before a number that a message shows.
_EXACT_DIGITS: Final = 15  # Decimal digits that a float always keeps.
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


def number(
    place: Place, where: str, option: str, quantity: Quantity, notation: Notation
) -> float:
    """Returns a number that is finite and not below zero."""
    try:
        value = read(place, quantity, notation)
        _check_range(place, value, quantity)
    except NumberError as error:
        shown = printable(place.text[error.start : error.end])[:SHOWN]
        first = max(0, error.start - _BEFORE)
        line = printable(place.text[first : first + SHOWN])
        caret = " " * (error.start - first) + "^" * max(1, min(len(shown), SHOWN))
        raise ReadingError(
            f"{where} has {shown!r}, {_why(str(error), shown, option)}",
            detail=f"{line}\n{caret}",
        ) from error
    return float(value)


def _why(reason: str, shown: str, option: str) -> str:
    if reason.startswith("of which"):
        return reason
    if re.fullmatch(r"[-+]?(?:nan|inf(?:inity)?)", shown, re.IGNORECASE):
        reason = "is not a rate or a time; they are positive and finite: look at what"
        return f"which {reason} the program did"
    if reason == "is not a number":
        return f"which {reason}; put the group of {option} around the number alone"
    return f"which {reason} (spellings: docs/command.md)"


def _check_range(place: Place, value: Decimal, quantity: Quantity) -> None:
    span = place.start, len(place.text)
    if not math.isfinite(float(value)):
        raise NumberError("is too large", *span)
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    is_exact = len(digits) <= _EXACT_DIGITS or Decimal(float(value)) == value
    if quantity is Quantity.COUNT and not is_exact:
        raise NumberError(
            f"has {len(digits)} digits and cannot be compared exactly; print at most"
            f" {_EXACT_DIGITS}",
            *span,
        )


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


def check_positive(reading: Reading) -> None:
    if not reading.value:
        raise ReadingError(
            f"{reading.where} has 0, which is not a rate or a time; they are positive"
            " and finite: look at what the program did"
        )


class LineReader:
    """Splits one stream into lines, and finds the number in each."""

    def __init__(
        self,
        pattern: re.Pattern[str],
        option: str = "--metric",
        quantity: Quantity = Quantity.RATE,
        notation: Notation = PLAIN,
    ) -> None:
        self._pattern, self.option = pattern, option
        self._quantity, self._notation = quantity, notation
        self._inverse, self._near = _inverse(pattern), _near(pattern)
        self._terminal = TerminalLine()
        self.missed: list[str] = []  # that match but for the number
        self.num_read = 0  # that have one

    def feed(self, chunk: bytes, ns: int) -> Iterator[Reading]:
        for line in self._terminal.feed(chunk):
            yield from self._read(line, ns)

    def _read(self, line: str, ns: int) -> Iterator[Reading]:
        is_cut, text = len(line) > MOST_COLUMNS, line[:MOST_COLUMNS]
        pattern = self._pattern
        matches = [*pattern.finditer(text)]
        if not matches and self._inverse is not None:
            pattern = self._inverse
            matches = [*pattern.finditer(text)]
        shown = printable(text.strip())[:SHOWN]
        if len(matches) > 1:
            raise ReadingError(
                f"the pattern of {self.option} matches {len(matches)} times in the line"
                f" {shown!r}; add what stands before the number that you mean"
            )
        where = f"the line {shown!r}"
        for match in matches:
            self.num_read += 1
            place = _place(pattern, match, is_cut=is_cut)
            value = number(place, where, self.option, self._quantity, self._notation)
            yield Reading(ns, value, where, counters(text))
        near = None if matches else self._near
        if near is not None and any(map(near.search, (text, text + " "))):
            self.missed.append(shown)


def check_missed(readers: Iterable[LineReader]) -> None:
    """Checks that no line lacked its number, once the program has printed enough."""
    for reader in readers:
        if number_of := len(reader.missed):
            raise ReadingError(
                f"{number_of} of {number_of + reader.num_read} lines that"
                f" {reader.option} looks for have no number, such as"
                f" {reader.missed[0]!r}: what was computed there failed, or the pattern"
                " is too narrow; look at what the program did"
            )


def _place(pattern: re.Pattern[str], match: re.Match[str], *, is_cut: bool) -> Place:
    text, start = match.string, max(match.start(1), 0)

    def asks(first: int, last: int) -> bool:
        """Whether the pattern finds the number only where this stands here."""
        filler = "x" if text[first].isdecimal() else "q"
        other = text[:first] + filler * (last - first) + text[last:]
        return all(
            other_match.start(1) != start for other_match in pattern.finditer(other)
        )

    return Place(
        text=text + "\u2026" * is_cut,
        start=start,
        is_led=match.start() < start,
        asks=asks,
    )


def _group(source: str) -> tuple[int, int] | None:
    """Returns where the capturing group of a pattern stands, brackets included."""
    opened: list[int | None] = []
    for token in _GROUP.finditer(source):
        if token[0][0] == "(":
            opened.append(token.start() if token[0] in ("(", "(?P<") else None)
        elif token[0] == ")" and opened:
            start = opened.pop()
            if start is not None:
                return start, token.end()
    return None


def _replaced(
    pattern: re.Pattern[str], prefix: str, rest: str
) -> re.Pattern[str] | None:
    try:
        return re.compile(prefix + rest, pattern.flags & ~re.UNICODE)
    except re.error:
        return None


def _near(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """Returns what finds the lines that match but for the number; None if any would."""
    group = _group(pattern.pattern)
    if group is None:
        return None
    prefix, suffix = pattern.pattern[: group[0]], pattern.pattern[group[1] :]
    literals = [
        re.search(r"\w", re.sub(r"\\\w|\[[^\]]*\]|\(\?\w*", "", part))
        for part in (prefix, suffix)
    ]
    is_whole = prefix.startswith("^") and suffix.endswith("$")
    if not (any(literals) or is_whole):
        return None
    end = "" if suffix else r"(?=[\s,;|)\]}]|$)"
    empty = r"|(?=\s*$)" if literals[0] and not suffix.strip("$") else ""
    no_number = _NO_NUMBER.replace("{empty}", empty).replace("{end}", end)
    return _replaced(pattern, prefix, no_number + suffix)


def _inverse(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """Returns the pattern for s/it if one asks for it/s, or the reverse."""
    group = _group(pattern.pattern)
    per = _PER.match(pattern.pattern, group[1]) if group else None
    if per is None or group is None or "s" not in (per["first"], per["second"]):
        return None
    prefix = pattern.pattern[: group[1]] + per["gap"]
    rest = f"{per['second']}/{per['first']}" + pattern.pattern[per.end() :]
    return _replaced(pattern, prefix, rest)


# A count (bytes on the wire, nodes of a graph, launches) is the same in every run of
# the same code, so two of them compare exactly, on any machine. The number that is
# printed last counts.

OPTION: Final = "--count"
UNIT: Final = "count"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
_PROTOCOL: Final = "printed by the program; the number that it printed last"


def parse_count(texts: Sequence[str]) -> dict[str, tuple[re.Pattern[str], Notation]]:
    counts: dict[str, tuple[re.Pattern[str], Notation]] = {}
    for text in texts:
        left, equals, where = text.partition("=")
        name, notation, _ = numbers.declared(left, OPTION, text)
        if not equals or not where or not _NAME.fullmatch(name):
            raise PlanError(
                f"{OPTION} {text!r} is not NAME=PATTERN; write a name of letters and"
                " digits, and a regular expression that has one group, such as"
                " 'bytes=sent ([0-9]+) bytes'"
            )
        if name in counts:
            raise PlanError(f"{OPTION} {name!r} is given twice; give two names")
        counts[name] = numbers.compiled(where, OPTION, text), notation
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


class CountReader:
    """Looks for the counts in the lines of both streams of a program."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._lines = {
            name: [LineReader(pattern, OPTION, Quantity.COUNT, notation) for _ in "12"]
            for name, (pattern, notation) in parse_count(texts).items()
        }
        self._found: dict[str, list[float]] = {name: [] for name in self._lines}

    def feed(self, stream: int, chunk: bytes, ns: int) -> None:
        for name, lines in self._lines.items():
            for reading in lines[stream].feed(chunk, ns):
                self._found[name].append(reading.value)

    def metrics(self) -> Iterator[dict[str, object]]:
        """Yields the fields of a ``window_metric`` line for each count."""
        for name, values in self._found.items():
            check_missed(self._lines[name])
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

    def __init__(self, metric: Metric, path: Path) -> None:
        self._metric, self._path = metric, path
        self._where = f"the file {path.name!r} of --metric"
        self._written, self._before = 0, b""
        with contextlib.suppress(OSError, ReadingError):
            self._written = path.stat().st_mtime_ns
            before = content(path)
            numbers_in(metric, before, path.name)
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
            self._take(now_ns, line)

    def _take(self, ns: int, line: bytes) -> None:
        is_csv, is_head = self._metric.file_kind == "csv", self._head is None
        if self._head is None:
            self._head = line
        if self._timed is None or not line.strip() or (is_csv and is_head):
            return
        text = self._head + b"\n" + line if is_csv else line
        try:
            values = _numbers(self._metric, text, self._path.name)
        except ReadingError:  # a document of several lines, or said by read()
            self._timed = None
        else:
            others = counters(line.decode(errors="replace"))
            self._timed += [Reading(ns, value, self._where, others) for value in values]

    def read(self) -> list[Reading]:
        """Returns the numbers that the program wrote.

        Each has its time if it was in a line of its own, so that it was seen to come.
        """
        now = content(self._path)
        values = numbers_in(self._metric, now, self._path.name)
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
        if self._rest:  # the last line need not have an end
            self._take(self._rest_ns, self._rest)
            self._rest = b""
        timed = self._timed or []
        if [reading.value for reading in timed] == values:
            return timed
        return [Reading(0, value, self._where) for value in values]


def content(path: Path) -> bytes:
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


def numbers_in(metric: Metric, text: bytes, name: str) -> list[float]:
    values = _numbers(metric, text, name)
    if not values:
        raise ReadingError(
            f"the file {name!r} of --metric has no number {metric.key!r}; name one"
            " that it has"
        )
    return values


def _numbers(metric: Metric, text: bytes, name: str) -> list[float]:
    where = f"the file {name!r} of --metric"
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadingError(f"{where} is not UTF-8 text: {error}") from error
    try:
        of_kind = _columns if metric.file_kind == "csv" else _members
        members = [*of_kind(decoded, metric.key, where)]
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
            value if isinstance(value, str) else repr(value) for value in members
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
        return [members for member in value for members in _follow(member, key, where)]
    if not key:
        return [value]
    if not isinstance(value, dict):
        return []
    ends = [index for index, one in enumerate(key + ".") if one == "."]
    members = [
        _follow(value[key[:end]], key[end + 1 :], where)
        for end in ends
        if key[:end] in value
    ]
    ways = [way for way in members if way]
    if len(ways) > 1:
        raise ReadingError(
            f"{where} has {key!r} in {len(ways)} ways, since names have dots; rename"
            " one of them"
        )
    return ways[0] if ways else []
