"""What is drawn over the number of replicas: efficiency, speedup, throughput."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One quantity that is drawn over the number of replicas."""

    name: str  # As in the glossary.
    slug: str  # In the frame, and for ids.
    write: Callable[[float], str]  # Formats one value.

    def ideal(self, num_replicas: int, base: int, value: float) -> float:
        """Returns perfect scaling from ``value`` at a baseline of ``base`` replicas."""
        if self.slug == "efficiency":
            return 1.0
        if self.slug == "speedup":
            return float(num_replicas)
        return value * num_replicas / base


EFFICIENCY: Final = Quantity(
    name="Parallel efficiency", slug="efficiency", write=formats.percent
)
SPEEDUP: Final = Quantity(name="Speedup", slug="speedup", write=formats.times)
THROUGHPUT: Final = Quantity(
    name="Throughput", slug="throughput", write=formats.significant
)
QUANTITIES: Final = (EFFICIENCY, SPEEDUP, THROUGHPUT)
