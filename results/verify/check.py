"""The outcome of ``verify``: how much was recomputed, and what differs."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """One figure that is not what the raw observations say."""

    kind: str  # The kind of figure.
    where: str  # File and field, or the figure in words.
    stated: str  # What the study says.
    recomputed: str  # What the raw observations say.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KindCount:
    """How many figures of a kind were recomputed."""

    kind: str  # What they are.
    num_recomputed: int  # Compared, equal or not.
    num_different: int  # Of those, the ones that differ.
    num_missing: int  # Not compared, since there are no raw observations.


class Check:
    """Collects comparisons.

    Attributes:
      differences: What differs, in the order in which it was found.
      missing: What could not be recomputed, one line each.
    """

    def __init__(self) -> None:
        self.differences: list[Mismatch] = []
        self.missing: list[str] = []
        self._kinds: dict[str, collections.Counter[str]] = {}

    def _count(self, kind: str, what: str) -> None:
        self._kinds.setdefault(kind, collections.Counter())[what] += 1

    def agree(self, kind: str) -> None:
        """Counts a figure that was recomputed and is the same."""
        self._count(kind, "recomputed")

    def differ(self, kind: str, where: str, stated: object, recomputed: object) -> None:
        """Counts a figure that differs."""
        self._count(kind, "recomputed")
        self._count(kind, "different")
        self.differences.append(
            Mismatch(
                kind=kind,
                where=where,
                stated=str(stated),
                recomputed=str(recomputed),
            )
        )

    def lack(self, kind: str, reason: str) -> None:
        """Counts a figure that has no raw observations."""
        self._count(kind, "missing")
        self.missing.append(reason)

    def compare(
        self,
        kind: str,
        where: str,
        stated: Any,
        derived: Any,
        *,
        tolerance: float = 0.0,
    ) -> None:
        """Compares two values: equal, or numbers within a relative tolerance."""
        if is_close(stated, derived, tolerance):
            self.agree(kind)
        else:
            self.differ(kind, where, repr(stated), repr(derived))

    @property
    def kinds(self) -> tuple[KindCount, ...]:
        """The counts, in the order in which the kinds were met."""
        return tuple(
            KindCount(
                kind=kind,
                num_recomputed=counts["recomputed"],
                num_different=counts["different"],
                num_missing=counts["missing"],
            )
            for kind, counts in self._kinds.items()
        )

    @property
    def num_recomputed(self) -> int:
        """Figures that were compared."""
        return sum(kind.num_recomputed for kind in self.kinds)


def is_close(stated: Any, derived: Any, tolerance: float) -> bool:
    """Whether two values are equal, or numbers within a relative tolerance."""
    if isinstance(stated, bool) or isinstance(derived, bool):
        return stated is derived
    if isinstance(stated, (int, float)) and isinstance(derived, (int, float)):
        return math.isclose(stated, derived, rel_tol=tolerance, abs_tol=0.0)
    return bool(stated == derived)
