"""The time of day, in the format of the records."""

from __future__ import annotations

import datetime as dt
import time


def now_text() -> str:
    """Returns the time as RFC 3339 in UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def age_sec(modified: float) -> float:
    """Returns how long ago a file was modified, from the time that its status has."""
    return time.time() - modified
