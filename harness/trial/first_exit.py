"""Which process of a trial explains its end, as the process that waits for all saw it.

Rank files say what each process observed; one that is killed observes nothing, and the
others may be killed after it. Without this, the cause could only be guessed.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from harness.trial import rank_file
from results.errors import UnavailableRecordError
from results.store import untrusted

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "first_exit.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstExit:
    """What happened first."""

    # The first rank that was killed, or else that failed; None if no process was
    # started.
    rank: int | None = None
    reason: str = ""  # Why, in one line, where it is known; otherwise empty.


def write(trial_dir: Path, first: FirstExit) -> None:
    """Records it."""
    text = json.dumps(dataclasses.asdict(first))
    (trial_dir / _NAME).write_text(text, encoding="utf-8")


def read(trial_dir: Path) -> FirstExit:
    """Returns what was recorded; nothing where there is nothing that can be read."""
    try:
        fields = untrusted.parsed(untrusted.read_bytes(trial_dir / _NAME) or b"")
        rank, reason = fields["rank"], str(fields["reason"])
    except (UnavailableRecordError, *rank_file.MALFORMED):
        return FirstExit()
    return FirstExit(rank=rank if isinstance(rank, int) else None, reason=reason)
