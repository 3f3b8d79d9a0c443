"""What several targets check of a job: times, and the names of hosts."""

from __future__ import annotations

import re

from harness.errors import PlanError
from results.records import limits

_TIME = re.compile(r"(\d{1,5}):([0-5]\d):([0-5]\d)")
_DEFAULT_SEC = 24 * 60 * 60


def seconds_of(time_limit: str | None) -> int:
    """Returns a time limit in seconds; a day if there is none.

    Args:
      time_limit: ``HH:MM:SS``, or seconds.

    Raises:
      PlanError: It is neither, or not positive.
    """
    if time_limit is None:
        return _DEFAULT_SEC
    found = _TIME.fullmatch(time_limit)
    if found:
        hours, minutes, seconds = map(int, found.groups())
        duration_sec = 3600 * hours + 60 * minutes + seconds
    elif time_limit.isascii() and time_limit.isdigit():
        duration_sec = int(time_limit[: len(str(int(limits.MAX_SEC))) + 1])
    else:
        duration_sec = 0
    if not 0 < duration_sec <= limits.MAX_SEC:
        raise PlanError(
            f"--time-limit {time_limit!r} is not a duration; write HH:MM:SS or seconds,"
            " such as 02:00:00"
        )
    return duration_sec
