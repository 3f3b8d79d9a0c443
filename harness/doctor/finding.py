"""What one check of the machine found."""

from __future__ import annotations

import dataclasses
from typing import Literal

Level = Literal["ok", "caution", "bad"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # What was looked at.
    level: Level  # ``bad`` if timings are unusable, ``caution`` if they can be worse.
    found: str  # One line.
    advice: str = ""  # One line: what to do; empty if it is ok.


def ok(check: str, found: str) -> Finding:
    """Returns a finding that needs no action."""
    return Finding(check=check, level="ok", found=found)


def caution(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that can make timings worse."""
    return Finding(check=check, level="caution", found=found, advice=advice)


def bad(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that makes timings unusable."""
    return Finding(check=check, level="bad", found=found, advice=advice)
