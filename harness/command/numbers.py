"""The grammar of the numbers that programs print: a whole token, or an error.

A regular expression says where a number begins, never where it ends: a number goes on
to a known delimiter, in one of the spellings of ``docs/command.md``, and everything
else is refused. So is what may mean two things (``1,234``, ``1,9``, ``1 234``,
``1:30``), unless a word behind the name of the metric says which:
``throughput[thousands]=...``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

from harness.catalog import look_up
from harness.errors import PlanError
from results.records.program import WALL, WITHOUT_PATTERN

MINUTES: Final = "m:ss"
_TIMES: Final = {
    name: Decimal(factor)
    for factor, names in {
        "1e-9": "ns",
        "1e-6": "us \u00b5s \u03bcs usec",
        "1e-3": "ms msec msecs millisecond milliseconds",
        "1": "s sec secs second seconds",
        "60": "min mins minute minutes",
        "3600": "h hr hrs hour hours",
    }.items()
    for name in names.split()
}
_MULTIPLES: Final = {name: Decimal(10**n) for name, n in zip("kKMG", (3, 3, 6, 9))}  # noqa: B905
UNITS: Final = {**_TIMES, **_MULTIPLES}
_STEPS: Final = "it|iters?|iterations?|steps?"
_NOUNS: Final = (
    rf"{_STEPS}|img|imgs|images?|samples?|ex|examples?|toks?|tokens?|seqs?|frames?|rows?"
    "|cells?|batch|batches|items?|ops?|B|b"
)
_TIME_NAMES: Final = "|".join(sorted(_TIMES, key=len, reverse=True))
WIDE: Final = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""Spaces that stand within numbers, and separate nothing else."""
_GAP: Final = rf"(?P<gap>[ {WIDE}]?)"
_PER: Final = rf"(?:/| per )(?P<per>{_TIME_NAMES})(?!\w)"
_RATE = re.compile(
    rf"{_GAP}(?:(?:(?P<multiple>[kKMG]) ?)?(?P<noun>{_NOUNS}|)|(?P<other>[^\W\d_]+))"
    + _PER
)
_TIME = re.compile(rf"{_GAP}(?P<time>{_TIME_NAMES})(?:/(?P<item>[^\W\d_]+))?(?!\w)")
_SECOND_PART = re.compile(rf",? ?[0-9.]+ ?(?P<time>{_TIME_NAMES})(?![\w/])")
_LONG = re.compile(
    rf"{_GAP}(?P<per>[^\W\d_]*(?:/| per ))?(?:d|m|days?|weeks?|months?|years?)(?!\w)"
)
_MULTIPLE = re.compile(r"[kKMG](?![\w/])")
_MULTIPLE_APART = re.compile(r" [kKMGT](?![\w:=/])")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):([0-5]\d(?:\.\d+)?)(?![\w:]|\.\w|,\d)", re.ASCII)
_PARTS = re.compile(
    r"(?=\d+[hm])(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?(?![\w/])", re.ASCII
)

COMMA, THOUSANDS, COLUMNS, SPACES = "comma", "thousands", "columns", "spaces"
CONVENTIONS: Final = {
    COMMA: "1,9 is 1.9",
    THOUSANDS: "1,234 is 1234",
    COLUMNS: "commas and spaces separate columns",
    SPACES: "1 234 is 1234",
}
_BY_COMMA, _BY_POINT = (
    rf"[1-9][0-9]{{0,2}}(?:(?P<sep>[{one}'\u2019_{WIDE}])[0-9]{{3}})(?:(?P=sep)[0-9]{{3}})*"
    for one in ",."
)
_INDIAN: Final = r"[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}"
_POINT = re.compile(rf"(?:[0-9]+|{_BY_COMMA}|{_INDIAN})?(?:\.[0-9]+)?")
_DECIMAL_COMMA = re.compile(rf"(?:[0-9]+|{_BY_POINT})(?:,[0-9]+)?")
_THOUSAND = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")
_BEFORE_COLUMN = re.compile(r"[0-9]+\.[0-9]+(?=,)")
_RUN, _RUN_OF_SPACES = (
    re.compile(rf"[0-9]+(?:[.,'\u2019_{WIDE}{one}][0-9]+)*|\.[0-9]+")
    for one in ("", " ")
)
_EXPONENT = re.compile(r"[eE][+\-\u2212]?[0-9]{1,4}(?![0-9])")
_SIGNS: Final = ("+", "-", "\u2212", "\u2013")
_END = re.compile(
    r"$|[\s;|)\]}>\"'\u2019”»`!±\\<]|[.](?![\w.])|,(?![.\d])|:(?!\d)|/(?!\d+/\d)|\+/?-"
    r"|[\u2013\u2014](?!\d)|\*(?!\d)"
)
_MEANS_MORE = re.compile(r" ?(?:[x\u00d7*·] ?|\^)[0-9]| ?[%‰]")
_JOINED = re.compile(
    r"([0-9.]+)(?:[^\W\d_]{1,3}| ?[*^\u00d7] ?"
    r"| ?(?:d|days?|h|hrs?|hours?|m|mins?|minutes?)(?:,| and)? )$"
)
"""A number before one of which it may be a part: 1m, 0x, 2 min , 1 day, , 1.5x10^."""
_UNCLEAR: Final = "may mean two things: print it without"
_NAMELESS: Final = "may be in thousands or millions; print the whole number"
_ZEROS = re.compile(rf"(?<![0-9][.,:'\u2019_/+\-\u2212\u2013{WIDE}])(?<![\w.,])0+$")
_WORD = re.compile(r"[A-Za-z]+(?!\w)")
_NOT_UNITS: Final = ("d", "m", "day", "days")
_GROUPS_BEFORE = re.compile(r"(?<![\w.,:/\-])[1-9][0-9]{0,2}(?: [0-9]{3})* $")
_GROUP_FOLLOWS = re.compile(r" [0-9]{3}(?![0-9:])")
_EXACT_DIGITS: Final = 15  # Decimal digits that a float always keeps.


class Quantity(enum.Enum):
    """What a number is to be; a time is returned in its unit."""

    RATE = "a rate"
    SEC = "a time"
    MS = "a time in ms"
    COUNT = "a whole number"

    @property
    def per_sec(self) -> Decimal | None:
        """Units in a second; None where it is no time."""
        return {Quantity.SEC: Decimal(1), Quantity.MS: Decimal(1000)}.get(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """What the numbers of an option are, and what is declared of their spelling."""

    option: str = "--metric"
    quantity: Quantity = Quantity.RATE
    convention: str = ""  # How commas and spaces are meant.
    unit: str = ""


class NumberError(ValueError):
    """A token that is no number; ``start`` and ``end`` say where it stands."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.start, self.end = start, end


def read(text: str, meaning: Meaning, match: re.Match[str] | None = None) -> float:
    """Returns the number of a line, which is finite and not below zero.

    It begins where the group of the match does, blanks and a sign aside; without a
    match, where the line begins. The line may end in a mark that the match lacks.
    """
    token = _Token(text, meaning, match)
    value = token.value()
    if not math.isfinite(float(value)):
        raise NumberError("is too large", token.given, len(text))
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    is_exact = len(digits) <= _EXACT_DIGITS or Decimal(float(value)) == value
    if meaning.quantity is Quantity.COUNT and not is_exact:
        why = f"has {len(digits)} digits and cannot be compared exactly; print at most"
        raise NumberError(f"{why} {_EXACT_DIGITS}", token.given, len(text))
    return float(value)


class _Token:
    """A run of digits and separators in a line, and what belongs to it."""

    def __init__(
        self, text: str, meaning: Meaning, match: re.Match[str] | None
    ) -> None:
        self.text, self.meaning, self.match = text, meaning, match
        self.given = max(match.start(1), 0) if match else 0
        # Where the number begins; a sign may be there.
        self.start = len(text) - len(text[self.given :].lstrip())
        first = self.start + (text[self.start : self.start + 1] in _SIGNS)
        by_spaces = meaning.convention == SPACES
        run = (_RUN_OF_SPACES if by_spaces else _RUN).match(text, first)
        if run is None:
            end = self.start + len(text[self.start :].partition(" ")[0])
            raise NumberError("is not a number", self.start, end)
        self.run = run

    def value(self) -> Decimal:
        text, run = self.text, self.run
        begin = self._begin()
        found = self._clock()
        if found is None:
            spelled, end = self._spelled(begin)
            exponent = _EXPONENT.match(text, end)
            if exponent is not None:
                spelled += exponent[0].replace("\u2212", "-")
                end = exponent.end()
            found = self._in_unit(Decimal(spelled), begin, end)
            word = _WORD.match(text, end)
            is_named = word and word[0] not in _NOT_UNITS and self._asks(*word.span())
            if found[1] == end and word and is_named:
                found = found[0], word.end()  # the pattern says it
        value, last = found
        self._check_end(last)
        if value and text[begin] in _SIGNS[1:]:
            raise NumberError("is below zero", begin, run.end())
        return value

    def _asks(self, first: int, last: int) -> bool:
        """Whether the pattern finds the number only where this stands here."""
        if self.match is None:
            return False
        text = self.match.string
        filler = "x" if text[first].isdecimal() else "q"
        text = text[:first] + filler * (last - first) + text[last:]
        others = self.match.re.finditer(text)
        return all(other.start(1) != self.given for other in others)

    def _begin(self) -> int:
        """Returns where the token begins, its sign included."""
        start, run = self.start, self.run[0]
        before = self.text[:start]
        last, previous = before[-1:], before[-2:-1]
        if re.search(r"[0-9.][eE][+\-\u2212]?$", before):
            self._raise_cut()
        if start == self.run.start() and last in _SIGNS:
            if previous.isnumeric():
                self._raise_cut()
            return start if previous.isalpha() else start - 1
        if _ZEROS.search(before) and run[0] != ".":
            return start  # zeros that lead
        if last.isnumeric() or (last == "." and (run[0] == "." or previous != ".")):
            self._raise_cut()
        is_led = self.match is None or self.match.start() < self.given
        if (last.isalpha() or last == "_") and not is_led:
            raise NumberError(
                "is a part of a word; add what stands before the number that you mean",
                len(before.rstrip("_" + last)),
                start + len(run),
            )
        if self._continues(before):
            self._raise_cut()
        return start

    def _continues(self, before: str) -> bool:
        """Whether the run may go on from digits before it."""
        run = self.run[0]
        joined = _JOINED.search(before)
        if joined is not None and not self._asks(*joined.span(1)):
            return True
        left = re.search(rf"([0-9][0-9.,]*)([,:'\u2019_/ {WIDE}])$", before)
        if left is None:
            return False
        is_group = re.match(r"[0-9]{3}(?![0-9])", run) is not None
        is_asked = self._asks(*left.span(1))
        is_free = is_asked or self.meaning.convention == COLUMNS
        joins = {
            ",": (is_group or run.isdecimal()) and not is_free,
            " ": is_group and not is_free and bool(_GROUPS_BEFORE.search(before)),
            ":": re.match(r"[0-5][0-9](?![0-9])", run) is not None,
            "/": not is_asked,
            **dict.fromkeys("'\u2019_", True),
        }
        return joins.get(left[2], is_group)

    def _raise_cut(self) -> NoReturn:
        start, run = self.start, self.run[0]
        before = self.text[:start]
        left = re.search(rf"[0-9.,:'\u2019_/eE+\-\u2212\u2013{WIDE} ]*$", before)
        length = len(left[0].lstrip(" :,/")) if left else 0
        raise NumberError(
            f"of which the pattern takes {run!r} alone; let its group begin where the"
            f" number begins{_advice(COLUMNS)}",
            start - length,
            start + len(run),
        )

    def _clock(self) -> tuple[Decimal, int] | None:
        """Returns a time of two parts or three, and where it ends."""
        first, quantity = self.run.start(), self.meaning.quantity
        clock = _CLOCK.match(self.text, first)
        match = clock or _PARTS.match(self.text, first)
        if match is None or sum(part is not None for part in match.groups()) < 2:  # noqa: PLR2004
            return None
        if quantity.per_sec is None:
            raise NumberError(f"is a time, not {quantity.value}", first, match.end())
        hours, minutes, seconds = (Decimal(part or 0) for part in match.groups())
        is_open = clock is not None and clock[1] is None and "." not in clock[3]
        if is_open and self.meaning.unit != MINUTES:
            raise NumberError(
                f"may be minutes or hours; write [{MINUTES}] behind the name if it is"
                " minutes and seconds, or print seconds",
                first,
                match.end(),
            )
        return (hours * 3600 + minutes * 60 + seconds) * quantity.per_sec, match.end()

    def _spelled(self, begin: int) -> tuple[str, int]:
        """Returns the run as Python spells it, and its end."""
        token, convention = self.run[0], self.meaning.convention
        if convention == COLUMNS:
            token = token.partition(",")[0]
        form = _DECIMAL_COMMA if convention == COMMA else _POINT
        match = form.fullmatch(token.replace(" ", "\u202f"))
        column = _BEFORE_COLUMN.match(token)
        is_column = column is not None and not re.match(_BY_POINT + ",", token)
        if match is None and column and is_column and convention != COMMA:
            token = column[0]
        elif match is None or (
            _THOUSAND.fullmatch(token) and convention not in (COMMA, THOUSANDS)
        ):
            why = "is not a number; print it without separators"
            if "," in token:
                why = f"{_UNCLEAR} commas{_advice(COMMA, THOUSANDS, COLUMNS)}"
            raise NumberError(why, begin, self.run.end())
        whole, point, fraction = token.partition("," if convention == COMMA else ".")
        spelled = re.sub(r"[^0-9]", "", whole) + "." * bool(point) + fraction
        return spelled, self.run.start() + len(token)

    def _in_unit(self, number: Decimal, begin: int, end: int) -> tuple[Decimal, int]:
        """Returns a number in the unit that follows or is declared, and their end."""
        text, unit, quantity = self.text, self.meaning.unit, self.meaning.quantity
        rate, time = _RATE.match(text, end), _TIME.match(text, end)
        last = max(end + 1, rate.end() if rate else 0, time.end() if time else 0)
        per_sec, why = quantity.per_sec, ""
        if rate and quantity is not Quantity.COUNT:
            return self._from_rate(number, rate, (begin, last)), rate.end()
        if time and (per_sec or time["time"] != "min"):
            return self._from_time(number, time, (begin, last)), time.end()
        long, multiple = _LONG.match(text, end), _MULTIPLE.match(text, end)
        if long and (per_sec or (quantity is Quantity.RATE and long["per"])):
            why = "is in an unknown unit of time; known are h, min, s, ms, us, ns"
        elif multiple and quantity is Quantity.RATE:
            return number * _MULTIPLES[multiple[0]], multiple.end()
        elif multiple and quantity is Quantity.COUNT:
            why = "is rounded; print the whole number"
        elif _MULTIPLE_APART.match(text, end) and unit not in _MULTIPLES:
            why = _NAMELESS
        if why:
            raise NumberError(why, begin, last)
        if unit in _TIMES and per_sec:
            return number * _TIMES[unit] * per_sec, end
        # Not times 1, which would round a count of many digits.
        return number * _MULTIPLES[unit] if unit in _MULTIPLES else number, end

    def _from_rate(
        self, number: Decimal, rate: re.Match[str], span: tuple[int, int]
    ) -> Decimal:
        noun, per_sec = (
            rate["noun"] or rate["other"] or "",
            self.meaning.quantity.per_sec,
        )
        if not (rate["multiple"] or rate["gap"]) and noun[:1] in [*"kKMGT"]:
            raise NumberError(_NAMELESS, *span)
        value = number * _MULTIPLES.get(rate["multiple"] or "", 1) / _TIMES[rate["per"]]
        if per_sec is None:
            return value
        if not re.fullmatch(_STEPS, noun) or not number:
            raise NumberError("is a rate, not a time", *span)
        return per_sec / value

    def _from_time(
        self, number: Decimal, time: re.Match[str], span: tuple[int, int]
    ) -> Decimal:
        quantity, unit = self.meaning.quantity, self.meaning.unit
        factor, after = _TIMES[time["time"]], self.text[time.end() :]
        more = _SECOND_PART.match(after)
        is_whole = number == number.to_integral_value() and not time["item"]
        is_per_item = number and time["item"] and quantity is not Quantity.COUNT
        why = ""
        if time["gap"] and time["time"] == "min" and after[:2].strip().isdecimal():
            why = "may be minutes or a minimum; print seconds"
        elif time["gap"] and after[:1] in [*":="]:
            why = "is before a unit or a name; write it without a blank"
        elif more and is_whole and _TIMES[more["time"]] < factor:
            why = "is a time in two parts; print seconds"
        elif quantity.per_sec is None and not is_per_item:
            why = f"is a time, not {quantity.value}"
        elif quantity.per_sec and factor != _TIMES.get(unit, factor):
            why = f"is not in {unit}, as was declared"
        if why:
            raise NumberError(why, *span)
        return (
            number * factor * quantity.per_sec
            if quantity.per_sec
            else 1 / (number * factor)
        )

    def _check_end(self, last: int) -> None:
        """Raises unless a known delimiter follows."""
        text, run, convention = self.text, self.run, self.meaning.convention
        if last < run.end() and text[last] == ",":
            return  # the next column
        is_count = self.meaning.quantity is Quantity.COUNT
        is_part = not is_count and re.match(r"/[0-9]", text[last:])
        if not _END.match(text, last) or _MEANS_MORE.match(text, last) or is_part:
            raise NumberError(
                f"is not a number that ends where {text[last : last + 1]!r} stands",
                run.start(),
                last + len(re.split(r"[\s,;]", text[last:] or " ")[0]),
            )
        is_group = last == run.end() and re.fullmatch(r"[1-9][0-9]{0,2}", run[0])
        group = _GROUP_FOLLOWS.match(text, last)
        if not (is_group and group) or convention in (COLUMNS, SPACES):
            return
        if not self._asks(last + 1, group.end()):
            why = f"{_UNCLEAR} spaces{_advice(COLUMNS, SPACES)}"
            raise NumberError(why, run.start(), group.end())


def _advice(*words: str) -> str:
    return "".join(
        f", or write [{word}] behind the name if {CONVENTIONS[word]}" for word in words
    )


# ``NAME=PATTERN`` reads lines that the program prints, ``NAME=json:FILE:KEY`` and
# ``NAME=csv:FILE:COLUMN`` a file that it writes. ``wall`` and ``client`` read nothing:
# the whole command is timed, or the program connects by ``scaling_client``.

THROUGHPUT: Final = "throughput"
QUANTITIES: Final = {
    THROUGHPUT: Quantity.RATE,
    "throughput_per_replica": Quantity.RATE,
    "step_time": Quantity.SEC,
    "step_time_ms": Quantity.MS,
    "steps_per_sec": Quantity.RATE,
    "epoch_time": Quantity.SEC,
}
_FILE = re.compile(r"(?P<file_kind>json|csv):(?P<path>.+):(?P<key>[^:]+)")
_NAME = re.compile(r"(?P<name>[^=\[\]]*)(?:\[(?P<words>[^\]=]*)\])?")
_EVERY = re.compile(r"every [1-9][0-9]{0,8}")  # ``Program.steps_per_line`` reads it.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str  # A key of ``QUANTITIES``, or ``wall`` or ``client``.
    meaning: Meaning = Meaning()
    # Of a line, with one group; None for a file.
    pattern: re.Pattern[str] | None = None
    file_kind: str = ""  # ``json`` or ``csv``; empty for lines.
    # Of the file, with placeholders; relative to where the program starts.
    path: str = ""
    key: str = ""  # Keys joined by dots, or a column.

    def seconds(self, value: float, global_batch_size: int, num_replicas: int) -> float:
        """Returns how long a global batch takes at the rate that a number says."""
        if self.name == "step_time_ms":
            return value / 1000
        if self.name in ("step_time", "epoch_time", WALL):
            return value
        if self.name == "steps_per_sec":
            return 1 / value
        share = num_replicas if self.name == "throughput_per_replica" else 1
        return global_batch_size / (value * share)


def parse_metric(text: str) -> Metric:
    if text in WITHOUT_PATTERN:
        return Metric(name=text)
    left, equals, where = text.partition("=")
    if not equals or not where:
        raise PlanError(
            f"--metric {text!r} does not say where the numbers are; write"
            " NAME=PATTERN with a regular expression that has one group, such as"
            " 'throughput=samples/s: ([0-9.]+)'; or wall for the time of the whole"
            " command"
        )
    name, meaning = declared(left, "--metric", text)
    quantity = look_up(QUANTITIES, name, what="metric of --command")
    file = _FILE.fullmatch(where)
    source: dict[str, Any] = file.groupdict() if file else {}
    return Metric(
        name=name,
        meaning=dataclasses.replace(meaning, quantity=quantity),
        **(source or {"pattern": compiled(where, "--metric", text)}),
    )


def declared(left: str, option: str, text: str) -> tuple[str, Meaning]:
    """Returns the name before a pattern, and what brackets behind it declare."""
    match = _NAME.fullmatch(left.strip())
    listed = (match["words"] or "").split(",") if match else []
    words = [*filter(None, map(str.strip, listed))]
    conventions = [word for word in words if word in CONVENTIONS]
    units = [word for word in words if word in (*UNITS, MINUTES)]
    steps = [word for word in words if _EVERY.fullmatch(word)]
    numbers = [*map(len, (conventions, units, steps))]
    if match is None or max(numbers) > 1 or sum(numbers) < len(words):
        raise PlanError(
            f"{option} {text!r}: behind a name, brackets hold at most one of"
            f" {', '.join(CONVENTIONS)}, one unit (ms, s, min, h, {MINUTES}, k, M, ...)"
            " and 'every N', the steps of a line, such as step_time[comma, ms]=PATTERN"
        )
    convention, unit = "".join(conventions), "".join(units)
    return match["name"].strip(), Meaning(option, Quantity.COUNT, convention, unit)


def compiled(where: str, option: str, text: str) -> re.Pattern[str]:
    """Returns a regular expression with one group, which is where a number begins."""
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise PlanError(
            f"{option} {text!r} has no regular expression: {error}; write brackets and"
            r" stops of the text as \( and \."
        ) from error
    if pattern.groups != 1:
        raise PlanError(
            f"{option} {text!r} has {pattern.groups} groups, and needs one, around the"
            " number: 'samples/s: ([0-9.]+)'; write others as (?:...)"
        )
    return pattern
