"""What a program's numbers mean, and where they are: the option ``--metric``.

``NAME=PATTERN`` reads lines that the program prints, ``NAME=json:FILE:KEY`` and
``NAME=csv:FILE:COLUMN`` a file that it writes. ``client`` reads nothing: the program
connects by ``scaling_client``.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from harness.command.numbers import CONVENTIONS, PLAIN, Notation
from harness.command.units import MINUTES, UNITS, Quantity
from harness.errors import PlanError
from harness.lookup import look_up
from results.records.program import CLIENT

THROUGHPUT: Final = "throughput"
QUANTITIES: Final = {
    THROUGHPUT: Quantity.RATE,
    "throughput_per_replica": Quantity.RATE,
    "step_time": Quantity.SEC,
    "step_time_ms": Quantity.MS,
}
_FILE = re.compile(r"(?P<kind>json|csv):(?P<path>.+):(?P<key>[^:]+)")
_NAME = re.compile(r"(?P<name>[^=\[\]]*)(?:\[(?P<words>[^\]=]*)\])?")
_EVERY = re.compile(r"every ([1-9][0-9]{0,8})")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """Where the numbers of a program are, and what they mean."""

    name: str  # A key of ``QUANTITIES``; or ``client``, of a program that connects.
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
        if self.name == "step_time":
            return value
        share = num_replicas if self.name == "throughput_per_replica" else 1
        return global_batch_size / (value * share)

    @property
    def quantity(self) -> Quantity:
        """What its numbers are."""
        return QUANTITIES[self.name]


def parse(text: str) -> Metric:
    """Returns the metric that ``--metric`` names."""
    if text == CLIENT:
        return Metric(name=CLIENT)
    left, equals, where = text.partition("=")
    if not equals or not where:
        raise PlanError(
            f"--metric {text!r} does not say where the numbers are; write"
            " NAME=PATTERN with a regular expression that has one group, such as"
            " 'throughput=samples/s: ([0-9.]+)'"
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
    """Returns name, notation and steps per line from ``NAME[WORD, WORD]``."""
    found = _NAME.fullmatch(left.strip())
    name = left.strip() if found is None else found["name"].strip()
    words = (
        [word.strip() for word in (found["words"] or "").split(",")] if found else []
    )
    conventions = [word for word in words if word in CONVENTIONS]
    units = [word for word in words if word in (*UNITS, MINUTES)]
    steps = [every for word in words if (every := _EVERY.fullmatch(word))]
    given = [word for word in words if word]
    if len(given) != len(conventions) + len(units) + len(steps) or (
        max(len(conventions), len(units), len(steps)) > 1 or found is None
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
