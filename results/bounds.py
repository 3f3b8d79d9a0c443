"""What a number, a text or a list in a record may be: types with both ends.

A record can come from anywhere: another machine, a half-written copy, a stranger. It is
checked against these bounds before anything is computed from it, so that no figure
overflows, no axis runs to infinity and nothing grows with a number in a file. They are
far beyond what is measured, and the same as those of the command line.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_TRIALS = 100_000
"""Trials of one study; each is a process, so more would run for weeks."""
MAX_REPLICAS = 65_536
MAX_STEPS = 1_000_000
"""Steps of a measured window, or of the warmup: all of them are recorded."""
MAX_LOSSES = 100 * MAX_STEPS
"""Of all steps of a quality run."""
MAX_BATCH_SIZE = 1_000_000_000
"""Of one replica, and of a global batch as it is typed."""
MAX_TOTAL = 10**18
"""Sums: examples, bytes, parameters. Fits 64 bits, as columns of pandas do."""
MAX_SEED = 2**63 - 1
MIN_SEC = 1e-9
MAX_SEC = 1e9
"""A nanosecond, as fine as clocks are, to thirty years."""
MAX_REAL = 1e100
"""A figure or its negative; its square and sums of it stay floats."""
MAX_EVALUATIONS = 10_000
MAX_BUDGET = 1e15
MAX_NAME = 200
MAX_LINE = 5_000
MAX_TEXT = 1_000_000
MAX_METRICS = 50
MAX_CHECKS = 200_000
"""Sanity checks of one trial: a few of each rank."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _check_printable(text: str) -> str:
    found = _UNPRINTABLE.search(text)
    if found is not None:
        raise ValueError(f"holds {found[0]!r}, must be one line of printable text")
    return text


def _check_storable(text: str) -> str:
    found = _UNSTORABLE.search(text)
    if found is not None:
        raise ValueError(f"holds {found[0]!r}, must be text that UTF-8 can hold")
    return text


def storable(text: str, limit: int = MAX_TEXT) -> str:
    """Returns a text as a record can hold it: marks for what it cannot, and its end.

    Args:
      text: Anything, such as what a library wrote to its log.
      limit: The most characters; the last ones stay.
    """
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[-limit:]


Name = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_check_printable)]
"""One line for people and axes: names, units, versions, times of day."""
Line = Annotated[str, Field(max_length=MAX_LINE), AfterValidator(_check_printable)]
"""One long line: a path, a data set, an argument."""
Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_check_storable)]
"""What a program said, in as many lines as it had."""
TrialId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
"""As ``identity`` makes it; also the name of a folder, so nothing else will do."""
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$|^$")]
"""A file in the trial's own folder, or none."""

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)]
GlobalBatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE * MAX_REPLICAS)]
Cores = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
Index = Annotated[int, Field(ge=0, le=MAX_TRIALS)]
Repeats = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Total = Annotated[int, Field(ge=0, le=MAX_TOTAL)]
PositiveTotal = Annotated[int, Field(ge=1, le=MAX_TOTAL)]
Nanoseconds = Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)]
ExitCode = Annotated[int, Field(ge=-(2**31), le=2**32)]
Real = Annotated[float, Field(ge=-MAX_REAL, le=MAX_REAL)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=MAX_SEC)]
"""Seconds that may be none, loads, quotas."""
Seconds = Annotated[float, Field(ge=MIN_SEC, le=MAX_SEC)]
"""A duration that something is divided by, or whose logarithm is taken."""
OptionValue = bool | Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | Real | Line
