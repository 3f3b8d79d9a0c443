"""What a program counts, beside what it times: the option ``--count``.

A count (bytes on the wire, nodes of a graph, launches) is the same in every run of the
same code, so two of them compare exactly, on any machine. The number that is printed
last counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from harness.command import metric
from harness.command.errors import CommandError
from harness.command.reader import LineReader, check_missed
from harness.command.units import Quantity
from harness.errors import PlanError
from harness.trial.step_counts import exact_metric
from results.records.limits import MAX_METRICS
from results.records.models import MetricFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.command.numbers import Notation

OPTION: Final = "--count"
UNIT: Final = "count"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
_PROTOCOL: Final = "printed by the program; the number that it printed last"


def parse(texts: Sequence[str]) -> dict[str, tuple[re.Pattern[str], Notation]]:
    """Returns the patterns of ``--count`` and what is declared, by name."""
    found: dict[str, tuple[re.Pattern[str], Notation]] = {}
    for text in texts:
        left, equals, where = text.partition("=")
        name, notation, _ = metric.declared(left, OPTION, text)
        if not equals or not where or not _NAME.fullmatch(name):
            raise PlanError(
                f"{OPTION} {text!r} is not NAME=PATTERN; write a name of letters and"
                " digits, and a regular expression that has one group, such as"
                " 'bytes=sent ([0-9]+) bytes'"
            )
        if name in found:
            raise PlanError(f"{OPTION} {name!r} is given twice; give two names")
        found[name] = metric.compiled(where, OPTION, text), notation
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


class CountReader:
    """Looks for the counts in the lines of both streams of a program."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._lines = {
            name: [LineReader(pattern, OPTION, Quantity.COUNT, notation) for _ in "12"]
            for name, (pattern, notation) in parse(texts).items()
        }
        self._found: dict[str, list[float]] = {name: [] for name in self._lines}

    def feed(self, stream: int, chunk: bytes, ns: int) -> None:
        """Reads the lines that a chunk of a stream completes."""
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
                    " it, before as many numbers as --num-measured-steps asks for"
                )
            yield exact_metric(
                name, values[-1], unit=UNIT, n=len(values), protocol=_PROTOCOL
            )
