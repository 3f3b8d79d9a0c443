"""Formats numbers: digits, units, intervals. One place, so that all agree."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from results.records.models import QualityMetric
    from results.statistics.estimates import Estimate
    from results.statistics.run_scores import TimeToTarget


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
    """Writes a number with the given number of significant digits.

    Never with an exponent, unless there would be too many zeros to count.
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value}"
    # The exponent after rounding: 9.999 is 10.0, not 10.00.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if not SMALLEST_EXPONENT <= exponent <= LARGEST_EXPONENT:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - exponent)
    text = f"{value:,.{decimals}f}"
    return text.replace(",", THIN_SPACE)


def _fixed(value: float, decimals: int) -> str:
    if abs(value) >= 10.0**LARGEST_EXPONENT:
        return significant(value)
    text = f"{value:.{decimals}f}"
    return text if float(text) else text.removeprefix("-")


def whole(value: int) -> str:
    """Writes a count with a thousands separator."""
    return f"{value:,}".replace(",", THIN_SPACE)


def times(value: float) -> str:
    """Writes a ratio as a multiple, such as 1.71x."""
    return f"{ratio(value)}{TIMES}"


def percent(value: float) -> str:
    """Writes a ratio as a percentage without decimals."""
    return f"{_fixed(100 * value, 0)}{THIN_SPACE}%"


def signed_percent(value: float) -> str:
    """Writes a change as a percentage, such as +3.0 %."""
    shown = f"{100 * value:+.1f}"
    shown = shown.lstrip("+-") if float(shown) == 0 else shown
    return f"{shown}{THIN_SPACE}%"


def change(found: Estimate) -> str:
    """Writes a ratio as a change with its interval: -20.0 % [-21.3, -18.7]."""
    return with_interval(
        found.value - 1,
        None if found.low is None else found.low - 1,
        None if found.high is None else found.high - 1,
        signed_percent,
    )


def longer(found: Estimate) -> str:
    """Writes how much longer or shorter something is: 31.5 % [29.0, 34.1] shorter."""
    sign, word = (1, "longer") if found.value >= 1 else (-1, "shorter")
    ends = [None if of is None else sign * (of - 1) for of in (found.low, found.high)]
    low, high = ends[::sign]
    figures = with_interval(sign * (found.value - 1), low, high, _tenths_of_percent)
    return f"{figures} {word}"


def _tenths_of_percent(value: float) -> str:
    return f"{100 * value:.1f}{THIN_SPACE}%"


def seconds(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a duration in seconds, or in milliseconds below one second."""
    if value < 1:
        return f"{significant(1000 * value, digits)}{THIN_SPACE}ms"
    return f"{significant(value, digits)}{THIN_SPACE}s"


def gibibytes(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a number of bytes in GiB (2**30 bytes)."""
    return f"{significant(value / GIBIBYTE, digits)}{THIN_SPACE}GiB"


def ratio(value: float) -> str:
    """Writes a ratio with two decimals and no multiplication sign."""
    return _fixed(value, 2)


def estimate(found: Estimate, write: Callable[[float], str]) -> str:
    """Writes a figure as it is written everywhere: 90 % [88, 92].

    With enough digits that the ends of the interval differ.
    """
    return with_interval(found.value, found.low, found.high, telling(found, write))


def telling(
    estimate: Estimate, write: Callable[[float], str]
) -> Callable[[float], str]:
    """Returns what writes an estimate with enough digits that its ends differ.

    Two decimals would give 0.06 [0.06, 0.06] for a ratio, and no decimals 6 % for it.
    """
    low, high = estimate.low, estimate.high
    if low is None or high is None or not low < high:
        return write
    for digits in (None, 0, 1, 2, 3, 4, 5, 6):
        shown = write if digits is None else _with_decimals(write, digits)
        if len({shown(low), shown(estimate.value), shown(high)}) == len(
            {low, estimate.value, high}
        ):
            return shown
    return shown


def _with_decimals(
    write: Callable[[float], str], decimals: int
) -> Callable[[float], str]:
    """Returns ``write`` with other decimals; what it writes must end in its unit."""
    others: dict[Callable[[float], str], Callable[[float], str]] = {
        percent: lambda value: f"{_fixed(100 * value, decimals)}{THIN_SPACE}%",
        times: lambda value: f"{_fixed(value, decimals)}{TIMES}",
        ratio: lambda value: _fixed(value, decimals),
        significant: lambda value: significant(value, decimals + 1),
        seconds: lambda value: seconds(value, decimals + 1),
        gibibytes: lambda value: gibibytes(value, decimals + 1),
    }
    return others.get(write, write)


def interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """Writes an interval as it is written everywhere: [88, 92], without line breaks.

    The unit is that of the figure before it, so it is written only where the ends have
    two: [990 ms, 1.1 s].
    """
    ends = [write(low), write(high)]
    numbers = [_NUMBER.match(end) for end in ends]
    units = {end[of.end() :] for end, of in zip(ends, numbers, strict=True) if of}
    if len(units) == 1 and all(numbers):
        ends = [of.group() for of in numbers if of]
    return f"[{ends[0]},{HARD_SPACE}{ends[1]}]"


def interval_if_any(
    low: float | None, high: float | None, write: Callable[[float], str]
) -> str:
    """Writes an interval, or that there is none."""
    if low is None or high is None:
        return ABSENT
    return interval(low, high, write)


def with_interval(
    value: float | None,
    low: float | None,
    high: float | None,
    write: Callable[[float], str],
) -> str:
    """Writes a value and, if it has one, its interval in brackets."""
    if value is None:
        return ABSENT
    if low is None or high is None:
        return write(value)
    return f"{write(value)} {interval(low, high, write)}"


def quality(value: float, unit: str, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a quality figure: a ratio as a percentage, others with their unit.

    The unit 1 of scores is omitted.
    """
    if math.isinf(value):
        return "failed"
    if unit in RATIO_UNITS:
        return percent(value)
    if unit == "1":
        return significant(value, digits)
    return f"{significant(value, digits)} {unit}"


def without_unit(value: float, unit: str, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a quality figure without its unit; percentages keep theirs."""
    return quality(value, unit if unit in RATIO_UNITS else "1", digits)


def quality_with_interval(
    value: float, low: float, high: float, unit: str
) -> tuple[str, str]:
    """Writes a quality figure, and its interval with enough digits to differ.

    Three digits would give 862 [862, 862] for returns within one point.
    """
    digits = _digits_that_tell(low, high)
    ends = interval(low, high, lambda end: without_unit(end, unit, digits))
    return quality(value, unit, digits), ends


def measured(metric: QualityMetric) -> tuple[str, str]:
    """Writes a quality metric and its interval."""
    return quality_with_interval(metric.value, metric.low, metric.high, metric.unit)


def run_score(score: Estimate, unit: str) -> tuple[str, str]:
    """Writes the score of several runs, and its interval if there is one."""
    if score.low is None or score.high is None:
        return quality(score.value, unit), ""
    return quality_with_interval(score.value, score.low, score.high, unit)


def _digits_that_tell(low: float, high: float) -> int:
    if not low < high:
        return SIGNIFICANT_DIGITS
    largest = max(abs(low), abs(high))
    needed = math.floor(math.log10(largest)) - math.floor(math.log10(high - low)) + 1
    return min(max(needed, SIGNIFICANT_DIGITS), MOST_DIGITS)


def time_to_target(time: TimeToTarget) -> str:
    """Writes a median time to a target, its interval and how many runs reached it."""

    def end(value: float) -> str:
        if value == math.inf:
            assert time.budget is not None
            return f"more than {significant(time.budget)}"
        return significant(value)

    median = time.median
    unit = " s" if median.unit == "s" else ""
    text = f"{end(median.value)}{unit}"
    if median.low is not None and median.high is not None:
        text += f" [{end(median.low)}, {end(median.high)}]"
        text += f" ({100 * median.confidence:.0f} % interval)"
    return f"{text}; reached by {time.num_reached} of {median.n} runs"


def p_value(value: float) -> str:
    """Writes a p-value; none is zero."""
    return "< 0.001" if value < SMALLEST_P else f"{value:.3f}"


def short_id(trial_id: str) -> str:
    """Returns the first characters of a trial id, enough to find it in the table."""
    return trial_id[:SHORT_ID_LENGTH]


def minute(time: str) -> str:
    """Writes a recorded time, such as 2026-01-01T00:00:00+00:00, as day and minute."""
    text = time[: len("2026-01-01T00:00")].replace("T", " ")
    is_utc = time.endswith(("Z", "+00:00"))
    return f"{text}{HARD_SPACE}UTC" if is_utc else text


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Writes a number with its noun: 1 trial, 2 trials."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


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
    """Returns the lines of a table."""
    lines = (list(map(escaped, row)) for row in (columns, *rows))
    head, *body = [f"| {' | '.join(row)} |" for row in lines]
    return [head, f"| {' | '.join(['---'] * len(columns))} |", *body]
