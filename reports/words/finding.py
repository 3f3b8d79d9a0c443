"""One finding of a study, as the verdict states it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding of the study.

    Attributes:
      figure: The number that is shown large.
      interval: Its interval in brackets, or why there is none.
      label: A short name.
      sentence: The whole statement with its interval.
      trial_ids: The trials behind it.
    """

    figure: str
    interval: str
    label: str
    sentence: str
    trial_ids: tuple[str, ...]
