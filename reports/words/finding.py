"""One finding of a study, as the verdict states it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding of the study."""

    figure: str  # The number that is shown large.
    interval: str  # Its interval in brackets, or why there is none.
    label: str  # A short name.
    sentence: str  # The whole statement with its interval.
    trial_ids: tuple[str, ...]  # The trials behind it.
