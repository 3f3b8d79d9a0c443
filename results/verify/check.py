"""Recomputes what a study states from its raw observations, and collects what differs.

Records are compared with the rank files of their trials (``trials.py``), and headline
figures with the same figures from rank files (``headlines.py``). What else a page shows
follows from the records, which the manifest covers (``files.py``).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from results.study.cases import CORRUPT, load_study, matching_entries
from results.verify import headlines, trials

if TYPE_CHECKING:
    from results.store.study_store import Store


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """One value that is not what the raw observations say."""

    kind: str  # The kind of figure.
    where: str  # File and field, or the figure in words.
    stated: str  # What the study says.
    recomputed: str  # What the raw observations say.


@dataclasses.dataclass(kw_only=True, slots=True)
class KindCount:
    """How many values of a kind were compared, of which some differ, or were not."""

    kind: str  # What they are.
    num_recomputed: int = 0
    num_different: int = 0
    num_missing: int = 0  # There are no raw observations: never taken for verified.


class Check:
    """Collects comparisons."""

    def __init__(self) -> None:
        self.differences: list[Mismatch] = []  # In the order in which they were found.
        self.missing: list[str] = []  # What could not be recomputed, one line each.
        self.kinds: dict[str, KindCount] = {}  # In the order in which they were met.

    def _of(self, kind: str) -> KindCount:
        return self.kinds.setdefault(kind, KindCount(kind=kind))

    def agree(self, kind: str) -> None:
        """Counts a value that was recomputed and is the same."""
        self._of(kind).num_recomputed += 1

    def differ(self, kind: str, where: str, stated: object, derived: object) -> None:
        """Counts a value that differs."""
        self.agree(kind)
        self._of(kind).num_different += 1
        both = {"stated": str(stated), "recomputed": str(derived)}
        self.differences.append(Mismatch(kind=kind, where=where, **both))

    def lack(self, kind: str, reason: str) -> None:
        """Counts a value that has no raw observations."""
        self._of(kind).num_missing += 1
        self.missing.append(reason)

    def compare(
        self, kind: str, where: str, stated: Any, derived: Any, tolerance: float = 0.0
    ) -> None:
        """Compares two values: equal, or numbers within a relative tolerance."""
        if _is_close(stated, derived, tolerance):
            self.agree(kind)
        else:
            self.differ(kind, where, repr(stated), repr(derived))

    def num_recomputed(self, *kinds: str) -> int:
        """Returns how many values were compared, of these kinds or of all."""
        found = (of for of in self.kinds.values() if not kinds or of.kind in kinds)
        return sum(of.num_recomputed for of in found)


def _is_close(stated: Any, derived: Any, tolerance: float) -> bool:
    if isinstance(stated, tuple) and isinstance(derived, tuple):
        both = zip(stated, derived, strict=False)
        is_close = all(_is_close(one, other, tolerance) for one, other in both)
        return is_close and len(stated) == len(derived)
    if isinstance(stated, bool) or isinstance(derived, bool):
        return stated is derived
    if isinstance(stated, (int, float)) and isinstance(derived, (int, float)):
        return math.isclose(stated, derived, rel_tol=tolerance, abs_tol=0.0)
    return bool(stated == derived)


def verify(store: Store) -> Check:
    """Compares records and headline figures of a study with its raw observations."""
    study, check = load_study(store), Check()
    for problem in study.problems:
        check.differ("records", problem.label, "readable", problem.reason)
    entries = [entry for entry in study.entries if entry.state != CORRUPT]
    raws = trials.compare(store, entries, check)
    entries = matching_entries(store.matching)
    matched = trials.compare(store.matching, entries, check)
    headlines.compare(study, raws, matched, check)
    return check
