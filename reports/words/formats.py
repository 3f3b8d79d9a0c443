"""Formats numbers: digits, units, intervals. One place, so that all agree."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results.records.models import QualityMetric
    from results.statistics.estimates import Estimate
    from results.statistics.run_scores import TimeToTarget

    Write = Callable[[float], str]

GIBIBYTE = 2**30
SHORT_ID_LENGTH = 8
SIGNIFICANT_DIGITS = 3
# More would be noise, however narrow an interval is.
MOST_DIGITS = 6
SMALLEST_P = 0.001
SMALLEST_EXPONENT, LARGEST_EXPONENT = -12, 15
RATIO_UNITS = frozenset({"", "ratio", "fraction"})
ABSENT = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"
HARD_SPACE = "\N{NO-BREAK SPACE}"
_NUMBER = re.compile(
    rf"[-+]?\d[\d.,{THIN_SPACE}]*?(?:e[-+]?\d+)?(?![\d.,]|{THIN_SPACE}\d)"
)


def significant(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a number with so many significant digits, and hardly ever an exponent."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value}"
    # The exponent after rounding: 9.999 is 10.0, not 10.00.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if not SMALLEST_EXPONENT <= exponent <= LARGEST_EXPONENT:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - exponent)}f}"
    return text.replace(",", THIN_SPACE)


def _fixed(value: float, decimals: int) -> str:
    if abs(value) >= 10.0**LARGEST_EXPONENT:
        return significant(value)
    text = f"{value:.{decimals}f}"
    return text if float(text) else text.removeprefix("-")


def whole(value: int) -> str:
    return f"{value:,}".replace(",", THIN_SPACE)


def ratio(value: float, decimals: int = 2) -> str:
    return _fixed(value, decimals)


def times(value: float, decimals: int = 2) -> str:
    return f"{_fixed(value, decimals)}{TIMES}"


def percent(value: float, decimals: int = 0) -> str:
    return f"{_fixed(100 * value, decimals)}{THIN_SPACE}%"


def signed_percent(value: float) -> str:
    """Writes a change as a percentage, such as +3.0 %."""
    shown = f"{100 * value:+.1f}"
    shown = shown.lstrip("+-") if float(shown) == 0 else shown
    return f"{shown}{THIN_SPACE}%"


def seconds(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    if value < 1:
        return f"{significant(1000 * value, digits)}{THIN_SPACE}ms"
    return f"{significant(value, digits)}{THIN_SPACE}s"


def gibibytes(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    return f"{significant(value / GIBIBYTE, digits)}{THIN_SPACE}GiB"


def longer(change: Estimate) -> str:
    """Writes how much longer or shorter something is: 31.5 % [29.0, 34.1] shorter."""
    sign, word = (1, "longer") if change.value >= 1 else (-1, "shorter")
    ends = [
        None if end is None else sign * (end - 1) for end in (change.low, change.high)
    ]
    write = functools.partial(percent, decimals=1)
    low, high = ends[::sign]
    figures = with_interval(sign * (change.value - 1), low, high, write)
    return f"{figures} {word}"


def estimate(interval_estimate: Estimate, write: Write) -> str:
    """Writes a figure as it is written everywhere: 90 % [88, 92]."""
    return with_interval(
        interval_estimate.value,
        interval_estimate.low,
        interval_estimate.high,
        telling(interval_estimate, write),
    )


_OF_DECIMALS: tuple[Write, ...] = (percent, times, ratio)
_OF_DIGITS: tuple[Write, ...] = (significant, seconds, gibibytes)


def telling(estimate: Estimate, write: Write) -> Write:
    """Returns a writer with enough digits that the ends of an interval differ."""
    low, high = estimate.low, estimate.high
    is_decimal = write in _OF_DECIMALS
    if low is None or high is None or not low < high:
        return write
    numbers = {low, estimate.value, high}
    shown, finest = write, 7 if is_decimal or write in _OF_DIGITS else 0
    for more in range(finest):
        if len(set(map(shown, numbers))) == len(numbers):
            break
        option = {"decimals": more} if is_decimal else {"digits": more + 1}
        shown = functools.partial(write, **option)
    return shown


def interval(low: float | None, high: float | None, write: Write) -> str:
    """Writes [88, 92], with units where the ends have two: [990 ms, 1.1 s]."""
    if low is None or high is None:
        return ABSENT
    ends = [write(low), write(high)]
    numbers = [_NUMBER.match(end) for end in ends]
    units = {
        end[match.end() :] for end, match in zip(ends, numbers, strict=True) if match
    }
    if len(units) == 1 and all(numbers):
        ends = [match.group() for match in numbers if match]
    return f"[{ends[0]},{HARD_SPACE}{ends[1]}]"


def with_interval(
    value: float | None, low: float | None, high: float | None, write: Write
) -> str:
    if value is None:
        return ABSENT
    if low is None or high is None:
        return write(value)
    return f"{write(value)} {interval(low, high, write)}"


def quality(value: float, unit: str, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a ratio as a percentage, others with their unit; scores have none."""
    if math.isinf(value):
        return "failed"
    if unit in RATIO_UNITS:
        return percent(value)
    text = significant(value, digits)
    return text if unit == "1" else f"{text} {unit}"


def measured(metric: QualityMetric | Estimate, unit: str) -> tuple[str, str]:
    """Writes a quality figure, and its interval with enough digits to differ."""
    low, high, digits = metric.low, metric.high, SIGNIFICANT_DIGITS
    if low is None or high is None:
        return quality(metric.value, unit), ""
    if low < high:
        largest = math.floor(math.log10(max(abs(low), abs(high))))
        needed = largest - math.floor(math.log10(high - low)) + 1
        digits = min(max(needed, digits), MOST_DIGITS)
    write = functools.partial(quality, unit=unit, digits=digits)
    return write(metric.value), interval(low, high, write)


def time_to_target(time: TimeToTarget) -> str:
    """Writes a median time to a target, its interval and how many runs reached it."""

    def end(value: float) -> str:
        if value == math.inf:
            assert time.budget is not None
            return f"more than {significant(time.budget)}"
        return significant(value)

    median = time.median
    text = f"{end(median.value)}{' s' * (median.unit == 's')}"
    if median.low is not None and median.high is not None:
        text += f" [{end(median.low)}, {end(median.high)}]"
        text += f" ({100 * median.confidence:.0f} % interval)"
    return f"{text}; reached by {time.num_reached} of {median.n} runs"


def p_value(value: float) -> str:
    return "< 0.001" if value < SMALLEST_P else f"{value:.3f}"


def short_id(trial_id: str) -> str:
    return trial_id[:SHORT_ID_LENGTH]


def day_and_minute(time: str) -> str:
    """Writes a recorded time, such as 2026-01-01T00:00:00+00:00, without its zone."""
    return time[: len("2026-01-01T00:00")].replace("T", " ")


def minute(time: str) -> str:
    text = day_and_minute(time)
    is_utc = time.endswith(("Z", "+00:00"))
    return f"{text}{HARD_SPACE}UTC" if is_utc else text


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Writes a number with its noun: 1 trial, 2 trials."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def span(numbers: Sequence[Any]) -> str:
    """Writes the ends of ascending numbers, such as 3 to 5; of equal ones, once."""
    return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Returns the values of each key, both in their order."""
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


# Brackets stay readable as those of intervals; a link also needs what follows them.
_MARKUP = re.compile(r"([\\|*`]|(?<=\])[(:\[])")
_ISSUE = re.compile(r"#(?=\d)")
_ADDRESS = re.compile(r"\b(www)\.", re.IGNORECASE)


def escaped(text: str) -> str:
    """Returns text of one line in which nothing is markup."""
    text = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    # Hosts turn a number after # into an issue, a name after @ into a mention, < into a
    # tag, and an address into a link.
    text = _ISSUE.sub("&#35;", text).replace("<", "&lt;").replace("@", "&#64;")
    return _ADDRESS.sub(r"\1&#46;", text.replace("://", ":&#47;&#47;"))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = (list(map(escaped, row)) for row in (columns, *rows))
    head, *body = [f"| {' | '.join(row)} |" for row in lines]
    return [head, f"| {' | '.join(['---'] * len(columns))} |", *body]


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (columns, *rows)]
