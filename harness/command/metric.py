"""What a program's numbers mean, and where they are: the option ``--metric``.

``NAME=PATTERN`` reads lines that the program prints, ``NAME=json:FILE:KEY`` and
``NAME=csv:FILE:COLUMN`` a file that it writes. ``client`` reads nothing: the program
connects by ``scaling_client``. ``step=PATTERN`` finds the lines that end a step, with
its number, of a program that is stopped between its turns.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.lookup import look_up
from results.records.program import CLIENT, STEP

if TYPE_CHECKING:
    from collections.abc import Callable

THROUGHPUT: Final = "throughput"
SECONDS: Final[dict[str, Callable[[float, int, int], float]]] = {
    THROUGHPUT: lambda value, batch, _replicas: batch / value,
    "throughput_per_replica": lambda value, batch, replicas: batch / (value * replicas),
    "step_time": lambda value, _batch, _replicas: value,
    "step_time_ms": lambda value, _batch, _replicas: value / 1000,
}
"""Seconds of a global batch, from a number, the batch and the replicas."""
_FILE = re.compile(r"(?P<kind>json|csv):(?P<path>.+):(?P<key>[^:]+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """Where the numbers of a program are, and what they mean.

    Attributes:
      name: One of ``SECONDS``; ``step``; or ``client``, of a program that connects.
      pattern: Of a line, with one group; None for a file.
      file_kind: ``json`` or ``csv``; empty for lines.
      path: Of the file, with placeholders; relative to where the program starts.
      key: Keys joined by dots, or a column.
    """

    name: str
    pattern: re.Pattern[str] | None = None
    file_kind: str = ""
    path: str = ""
    key: str = ""

    def seconds(self, value: float, global_batch_size: int, num_replicas: int) -> float:
        """Returns how long a global batch takes at the rate that a number says."""
        return SECONDS[self.name](value, global_batch_size, num_replicas)


def parse(text: str) -> Metric:
    """Returns the metric that ``--metric`` names.

    Raises:
      PlanError: It is not NAME=PATTERN, or a part of it is wrong.
    """
    if text == CLIENT:
        return Metric(name=CLIENT)
    name, equals, where = text.partition("=")
    if not equals or not where:
        raise PlanError(
            f"--metric {text!r} does not say where the numbers are; write"
            " NAME=PATTERN with a regular expression that has one group, such as"
            " 'throughput=samples/s: ([0-9.]+)'"
        )
    known = {**dict.fromkeys(SECONDS), STEP: None}
    look_up(known, name.strip(), what="metric of --command")
    found = None if name.strip() == STEP else _FILE.fullmatch(where)
    if found is not None:
        return Metric(
            name=name.strip(),
            file_kind=found["kind"],
            path=found["path"],
            key=found["key"],
        )
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise PlanError(
            f"--metric {text!r} has no regular expression: {error}; write brackets and"
            r" stops of the text as \( and \."
        ) from error
    if pattern.groups != 1:
        raise PlanError(
            f"--metric {text!r} has {pattern.groups} groups, and needs one, around the"
            " number: 'samples/s: ([0-9.]+)'; write others as (?:...)"
        )
    return Metric(name=name.strip(), pattern=pattern)
