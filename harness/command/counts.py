"""What a program counts, beside what it times: the option ``--count``.

A count (bytes on the wire, nodes of a graph, launches) is the same in every run of the
same code, so two of them compare exactly, on any machine. The number that is printed
last counts.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from harness.command.errors import CommandError, ReadingError
from harness.command.reader import SHOWN, LineReader
from harness.errors import PlanError
from harness.trial.step_counts import exact_metric
from results.records.limits import MAX_METRICS, MAX_REAL
from results.records.models import MetricFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPTION: Final = "--count"
UNIT: Final = "count"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
_PROTOCOL: Final = "printed by the program; the number that it printed last"


def parse(texts: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """Returns the patterns of ``--count``, by name.

    Args:
      texts: NAME=PATTERN, one each.

    Raises:
      PlanError: One is not, or two have one name.
    """
    found: dict[str, re.Pattern[str]] = {}
    for text in texts:
        name, equals, where = text.partition("=")
        if not equals or not where or not _NAME.fullmatch(name):
            raise PlanError(
                f"{OPTION} {text!r} is not NAME=PATTERN; write a name of letters and"
                " digits, and a regular expression that has one group, such as"
                " 'bytes=sent ([0-9]+) bytes'"
            )
        if name in found:
            raise PlanError(f"{OPTION} {name!r} is given twice; give two names")
        try:
            found[name] = re.compile(where)
        except re.error as error:
            raise PlanError(
                f"{OPTION} {text!r} has no regular expression: {error}; write brackets"
                r" and stops of the text as \( and \."
            ) from error
        if found[name].groups != 1:
            raise PlanError(
                f"{OPTION} {text!r} has {found[name].groups} groups, and needs one,"
                " around the number; write others as (?:...)"
            )
    if len(found) > MAX_METRICS:
        raise PlanError(f"{len(found)} {OPTION} are too many; give {MAX_METRICS}")
    return found


def facts(texts: Sequence[str]) -> tuple[MetricFacts, ...]:
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
        for name in parse(texts)
    )


def number(text: str, where: str) -> float:
    """Returns a count.

    Raises:
      ReadingError: It is no number, or below zero.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_REAL:
        raise ReadingError(
            f"{where} has {text[:SHOWN]!r}, which is no count: a number of 0 or more;"
            f" put the group of {OPTION} around the number alone"
        )
    return value


class CountReader:
    """Looks for the counts in the lines of both streams of a program."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._lines = {
            name: [LineReader(pattern, OPTION, number) for _ in range(2)]
            for name, pattern in parse(texts).items()
        }
        self._found: dict[str, list[float]] = {name: [] for name in self._lines}

    def feed(self, stream: int, chunk: bytes, ns: int) -> None:
        """Reads the lines that a chunk of a stream completes.

        Raises:
          ReadingError: One says nothing clear.
        """
        for name, lines in self._lines.items():
            for reading in lines[stream].feed(chunk, ns):
                self._found[name].append(reading.value)

    def metrics(self) -> Iterator[dict[str, object]]:
        """Yields the fields of a ``window_metric`` line for each count.

        Raises:
          CommandError: The program never printed one.
        """
        for name, values in self._found.items():
            if not values:
                raise CommandError(
                    f"no line that the command printed matches {OPTION} {name!r}; print"
                    " it, before as many numbers as --num-measured-steps asks for"
                )
            yield exact_metric(
                name, values[-1], unit=UNIT, n=len(values), protocol=_PROTOCOL
            )
