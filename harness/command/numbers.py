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
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NoReturn

from harness.catalog import look_up
from harness.errors import PlanError
from results.records.program import WALL, WITHOUT_PATTERN

if TYPE_CHECKING:
    from collections.abc import Callable


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
_RATE = re.compile(rf"{_GAP}(?:(?P<multiple>[kKMG]) ?)?(?P<noun>{_NOUNS}|){_PER}")
_OTHER_RATE = re.compile(rf"{_GAP}(?P<multiple>)(?P<noun>[^\W\d_]+){_PER}")
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


_NAMELESS: Final = "may be in thousands or millions; print the whole number"


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


class NumberError(ValueError):
    """A token that is no number; ``start`` and ``end`` say where it stands."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.start, self.end = start, end


def composed(
    text: str, start: int, quantity: Quantity, declared: str
) -> tuple[Decimal, int] | None:
    clock = _CLOCK.match(text, start)
    match = clock or _PARTS.match(text, start)
    if match is None or sum(part is not None for part in match.groups()) < 2:  # noqa: PLR2004
        return None
    if quantity.per_sec is None:
        raise NumberError(f"is a time, not {quantity.value}", start, match.end())
    hours, minutes, seconds = (Decimal(part or 0) for part in match.groups())
    is_open = clock is not None and clock[1] is None and "." not in clock[3]
    if is_open and declared != MINUTES:
        raise NumberError(
            f"may be minutes or hours; write [{MINUTES}] behind the name if it is"
            " minutes and seconds, or print seconds",
            start,
            match.end(),
        )
    return (hours * 3600 + minutes * 60 + seconds) * quantity.per_sec, match.end()


def in_unit(
    number: Decimal, text: str, span: tuple[int, int], quantity: Quantity, declared: str
) -> tuple[Decimal, int]:
    start, end = span
    rate = _RATE.match(text, end) or _OTHER_RATE.match(text, end)
    time = _TIME.match(text, end)
    try:
        if rate is not None and quantity is not Quantity.COUNT:
            return _from_rate(number, rate, quantity), rate.end()
        if time is not None and (quantity.per_sec or time["time"] != "min"):
            return _from_time(number, text, time, quantity, declared), time.end()
        long = _LONG.match(text, end)
        is_meant = quantity.per_sec or (
            quantity is Quantity.RATE and long and long["per"]
        )
        if long and is_meant:
            _refuse("is in an unknown unit of time; known are h, min, s, ms, us, ns")
        multiple = _MULTIPLE.match(text, end)
        if multiple is not None and quantity is Quantity.RATE:
            return number * _MULTIPLES[multiple[0]], multiple.end()
        if multiple is not None and quantity is Quantity.COUNT:
            _refuse("is rounded; print the whole number")
        if _MULTIPLE_APART.match(text, end) and declared not in _MULTIPLES:
            _refuse(_NAMELESS)
    except ValueError as error:
        last = max([end + 1, *(match.end() for match in (rate, time) if match)])
        raise NumberError(str(error), start, last) from error
    if declared in _TIMES and quantity.per_sec:
        return number * _TIMES[declared] * quantity.per_sec, end
    return number * _MULTIPLES[declared] if declared in _MULTIPLES else number, end


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)


def _from_rate(number: Decimal, rate: re.Match[str], quantity: Quantity) -> Decimal:
    if not (rate["multiple"] or rate["gap"]) and rate["noun"][:1] in [*"kKMGT"]:
        raise ValueError(_NAMELESS)
    value = number * _MULTIPLES.get(rate["multiple"] or "", 1) / _TIMES[rate["per"]]
    if quantity.per_sec is None:
        return value
    if not re.fullmatch(_STEPS, rate["noun"]) or not number:
        raise ValueError("is a rate, not a time")
    return quantity.per_sec / value


def _from_time(
    number: Decimal, text: str, time: re.Match[str], quantity: Quantity, declared: str
) -> Decimal:
    factor = _TIMES[time["time"]]
    if (
        time["gap"]
        and time["time"] == "min"
        and text[time.end() :][:2].strip().isdecimal()
    ):
        raise ValueError("may be minutes or a minimum; print seconds")
    if time["gap"] and text[time.end() :][:1] in [*":="]:
        raise ValueError("is before a unit or a name; write it without a blank")
    more = _SECOND_PART.match(text, time.end())
    is_whole = number == number.to_integral_value() and not time["item"]
    if more and is_whole and _TIMES[more["time"]] < factor:
        raise ValueError("is a time in two parts; print seconds")
    if quantity.per_sec is not None:
        if declared in _TIMES and factor != _TIMES[declared]:
            raise ValueError(f"is not in {declared}, as was declared")
        return number * factor * quantity.per_sec
    if not time["item"] or quantity is Quantity.COUNT or not number:
        raise ValueError(f"is a time, not {quantity.value}")
    return 1 / (number * factor)


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
_SIGNS: Final = "+-\u2212\u2013"
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
_ZEROS = re.compile(rf"(?<![0-9][.,:'\u2019_/+\-\u2212\u2013{WIDE}])(?<![\w.,])0+$")
_WORD = re.compile(r"[A-Za-z]+(?!\w)")
_NOT_UNITS: Final = ("d", "m", "day", "days")
_GROUPS_BEFORE = re.compile(r"(?<![\w.,:/\-])[1-9][0-9]{0,2}(?: [0-9]{3})* $")
_GROUP_FOLLOWS = re.compile(r" [0-9]{3}(?![0-9:])")


@dataclasses.dataclass(frozen=True, slots=True)
class Notation:
    """What is declared: how commas and spaces are meant, and the unit."""

    convention: str = ""
    unit: str = ""


PLAIN: Final = Notation()


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A line, where a pattern says that a number begins, and what else it says."""

    text: str  # The line.
    start: int  # Where the number begins; blanks and a sign may be before it.
    is_led: bool = True  # Whether the pattern says what stands before it.
    # Whether the pattern asks for the digits, or the word, in a part of the line.
    asks: Callable[[int, int], bool] = lambda _start, _end: False


def read(place: Place, quantity: Quantity, notation: Notation) -> Decimal:
    """Returns the number at a place of a line, which is not below zero."""
    text, start = place.text, place.start
    start += len(text[start:]) - len(text[start:].lstrip())
    first = start + (text[start : start + 1] in tuple(_SIGNS))
    run = (_RUN_OF_SPACES if notation.convention == SPACES else _RUN).match(text, first)
    if run is None:
        end = start + len(text[start:].partition(" ")[0])
        raise NumberError("is not a number", start, end)
    begin = _begin(place, start, first, run[0], notation)
    clock = composed(text, first, quantity, notation.unit)
    if clock is not None:
        value, last = clock
    else:
        spelled, end = _spelled(run, begin, notation)
        exponent = _EXPONENT.match(text, end)
        if exponent is not None:
            spelled += exponent[0].replace("\u2212", "-")
            end = exponent.end()
        value, last = in_unit(
            Decimal(spelled), text, (begin, end), quantity, notation.unit
        )
        word = _WORD.match(text, end)
        is_named = word and word[0] not in _NOT_UNITS and place.asks(*word.span())
        if last == end and word and is_named:
            last = word.end()  # the pattern says it
    _check_end(place, run, last, quantity, notation)
    if text[begin] in "-\u2212\u2013" and value:
        raise NumberError("is below zero", begin, run.end())
    return value


def _begin(place: Place, start: int, first: int, run: str, notation: Notation) -> int:
    """Returns where the token begins, its sign included."""
    before = place.text[:start]
    if re.search(r"[0-9.][eE][+\-\u2212]?$", before):
        _raise_cut(place, start, run)
    if first == start and before.endswith(tuple(_SIGNS)):
        if before[-2:-1].isnumeric():
            _raise_cut(place, start, run)
        return start if before[-2:-1].isalpha() else start - 1
    if _ZEROS.search(before) and run[0] != ".":
        return start  # zeros that lead
    last = before[-1:]
    if last.isnumeric() or (last == "." and (run[0] == "." or before[-2:-1] != ".")):
        _raise_cut(place, start, run)
    if (last.isalpha() or last == "_") and not place.is_led:
        raise NumberError(
            "is a part of a word; add what stands before the number that you mean",
            start - len(before) + len(before.rstrip("_" + last)),
            start + len(run),
        )
    if _continues(place, before, run, notation):
        _raise_cut(place, start, run)
    return start


def _continues(place: Place, before: str, run: str, notation: Notation) -> bool:
    """Whether a run of digits may go on from the one before it."""
    joined = _JOINED.search(before)
    if joined is not None and not place.asks(*joined.span(1)):
        return True
    left = re.search(rf"([0-9][0-9.,]*)([,:'\u2019_/ {WIDE}])$", before)
    if left is None:
        return False
    separator = left[2]
    is_group = re.match(r"[0-9]{3}(?![0-9])", run) is not None
    if separator in ", ":
        is_free = notation.convention == COLUMNS or place.asks(*left.span(1))
        is_small = _GROUPS_BEFORE.search(before) is not None
        is_joined = is_group or run.isdecimal() if separator == "," else is_small
        return not is_free and is_joined and (is_group or separator == ",")
    if separator == ":":
        return re.match(r"[0-5][0-9](?![0-9])", run) is not None
    if separator == "/":
        return not place.asks(*left.span(1))
    return separator in "'\u2019_" or is_group


def _raise_cut(place: Place, start: int, run: str) -> NoReturn:
    left = re.search(
        rf"[0-9.,:'\u2019_/eE+\-\u2212\u2013{WIDE} ]*$", place.text[:start]
    )
    length = len(left[0].lstrip(" :,/")) if left else 0
    raise NumberError(
        f"of which the pattern takes {run!r} alone; let its group begin where the"
        f" number begins{_advice(COLUMNS)}",
        start - length,
        start + len(run),
    )


def _advice(*words: str) -> str:
    return "".join(
        f", or write [{word}] behind the name if {CONVENTIONS[word]}" for word in words
    )


def _spelled(run: re.Match[str], begin: int, notation: Notation) -> tuple[str, int]:
    """Returns a run of digits and separators as Python spells it, and its end."""
    token, convention = run[0], notation.convention
    if convention == COLUMNS:
        token = token.partition(",")[0]
    match = (_DECIMAL_COMMA if convention == COMMA else _POINT).fullmatch(
        token.replace(" ", "\u202f")
    )
    column = _BEFORE_COLUMN.match(token)
    if (
        convention != COMMA
        and match is None
        and column
        and not re.match(_BY_POINT + ",", token)
    ):
        token = column[0]
    elif match is None or (
        _THOUSAND.fullmatch(token) and convention not in (COMMA, THOUSANDS)
    ):
        why = "is not a number; print it without separators"
        if "," in token:
            why = f"{_UNCLEAR} commas{_advice(COMMA, THOUSANDS, COLUMNS)}"
        raise NumberError(why, begin, run.end())
    whole, point, fraction = token.partition("," if convention == COMMA else ".")
    spelled = re.sub(r"[^0-9]", "", whole) + "." * bool(point) + fraction
    return spelled, run.start() + len(token)


def _check_end(
    place: Place, run: re.Match[str], last: int, quantity: Quantity, notation: Notation
) -> None:
    """Raises unless a known delimiter follows."""
    text = place.text
    if last < run.end() and text[last] == ",":
        return  # the next column
    is_part = quantity is not Quantity.COUNT and re.match(r"/[0-9]", text[last:])
    if not _END.match(text, last) or _MEANS_MORE.match(text, last) or is_part:
        raise NumberError(
            f"is not a number that ends where {text[last : last + 1]!r} stands",
            run.start(),
            last + len(re.split(r"[\s,;]", text[last:] or " ")[0]),
        )
    if (
        last == run.end()
        and re.fullmatch(r"[1-9][0-9]{0,2}", run[0])
        and (group := _GROUP_FOLLOWS.match(text, last))
        and notation.convention not in (COLUMNS, SPACES)
        and not place.asks(last + 1, group.end())
    ):
        raise NumberError(
            f"{_UNCLEAR} spaces{_advice(COLUMNS, SPACES)}", run.start(), group.end()
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
_FILE = re.compile(r"(?P<kind>json|csv):(?P<path>.+):(?P<key>[^:]+)")
_NAME = re.compile(r"(?P<name>[^=\[\]]*)(?:\[(?P<words>[^\]=]*)\])?")
_EVERY = re.compile(r"every ([1-9][0-9]{0,8})")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str  # A key of ``QUANTITIES``, or ``wall`` or ``client``.
    notation: Notation = PLAIN  # What is declared of its numbers.
    every: int = 0  # Steps of a line, which its number is said to be of.
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

    @property
    def quantity(self) -> Quantity:
        return QUANTITIES[self.name]


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
    name, notation, every = declared(left, "--metric", text)
    look_up(dict.fromkeys(QUANTITIES), name, what="metric of --command")
    file = _FILE.fullmatch(where)
    return Metric(
        name=name,
        notation=notation,
        every=every,
        **(
            {"pattern": compiled(where, "--metric", text)}
            if file is None
            else {"file_kind": file["kind"], "path": file["path"], "key": file["key"]}
        ),
    )


def declared(left: str, option: str, text: str) -> tuple[str, Notation, int]:
    match = _NAME.fullmatch(left.strip())
    name = left.strip() if match is None else match["name"].strip()
    words = (
        [word.strip() for word in (match["words"] or "").split(",")] if match else []
    )
    conventions = [word for word in words if word in CONVENTIONS]
    units = [word for word in words if word in (*UNITS, MINUTES)]
    steps = [every for word in words if (every := _EVERY.fullmatch(word))]
    given = [word for word in words if word]
    if len(given) != len(conventions) + len(units) + len(steps) or (
        max(len(conventions), len(units), len(steps)) > 1 or match is None
    ):
        raise PlanError(
            f"{option} {text!r}: behind a name, brackets hold at most one of"
            f" {', '.join(CONVENTIONS)}, one unit (ms, s, min, h, {MINUTES}, k, M, ...)"
            " and 'every N', the steps of a line, such as step_time[comma, ms]=PATTERN"
        )
    notation = Notation("".join(conventions), "".join(units))
    return name, notation, int(steps[0][1]) if steps else 0


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
