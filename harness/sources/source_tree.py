"""A tree of our sources beside the one that runs, such as that of another revision."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """Sources that trials can run."""

    revision: str  # Its name in the specs of trials.
    root: Path  # The folder that the packages are in.
    python: str = sys.executable  # The interpreter that runs it.
    # Of the packages of that interpreter that can change the numbers, or are recorded;
    # None for those of this process.
    versions: Mapping[str, str] | None = None
