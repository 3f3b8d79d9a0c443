"""Staleness: the updates of other workers between a step's read and its update."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """What was measured since the replicator was made, over all applied updates.

    The staleness of an update on a parameter server is the number of updates that the
    server applied after the step had read the server's clock, which it does before it
    reads any variable there, and before its own update. So it is an upper bound of the
    number of updates that the values which the step read did not contain, and 0 with
    one worker. A step with updates on several servers counts once on each.
    """

    num_updates: int  # Updates that were applied.
    histogram: dict[int, int]  # Number of updates by staleness: staleness -> updates.
    mean: float  # Mean staleness; 0.0 before the first update.
    max: int  # Largest staleness, up to ``limit``.
    limit: int  # Larger values are counted as this.

    def __str__(self) -> str:
        counts = ", ".join(f"{s}: {n}" for s, n in sorted(self.histogram.items()))
        return (
            f"{self.num_updates} updates, staleness mean {self.mean:.2f}, max "
            f"{self.max}; updates by staleness: {counts or 'none'}"
        )


def summarize(counts_by_server: list[list[int]]) -> Staleness:
    """Adds the update counts of all servers."""
    totals = [sum(counts) for counts in zip(*counts_by_server, strict=True)]
    num_updates = sum(totals)
    histogram = {value: count for value, count in enumerate(totals) if count}
    weighted = sum(value * count for value, count in histogram.items())
    return Staleness(
        num_updates=num_updates,
        histogram=histogram,
        mean=weighted / num_updates if num_updates else 0.0,
        max=max(histogram, default=0),
        limit=len(totals) - 1,
    )
