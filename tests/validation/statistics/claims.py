"""A claim, what was simulated, how often it held; and tables of them as CSV."""

from __future__ import annotations

import csv
import dataclasses
import math

STANDARD_ERRORS, CERTAIN_ERRORS = 2, 3
"""Of the simulation. Of a hundred cells some are two of them away by chance."""


def misses(share, least, most, n, standard_errors=STANDARD_ERRORS):
    """Whether a share of n simulations is beyond its bounds, which may be None."""
    for bound, sign in ((least, 1), (most, -1)):
        if bound is not None:
            error = math.sqrt(bound * (1 - bound) / n)
            if sign * (bound - share) > standard_errors * error:
                return True
    return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One number or sentence of a page, and what it is worth."""

    name: str  # What a reader sees.
    claimed: str  # In words.
    simulated: str  # The truth and the noise.
    # What was found, the lowest and the highest of several noises.
    shares: tuple[float, ...]
    least: float | None = None  # Shares must be at least this.
    most: float | None = None  # Shares must be at most this.
    n: int  # Simulations of each share.
    is_claimed: bool = True  # Whether anything is claimed; where not, the page says so.

    def misses(self, standard_errors=STANDARD_ERRORS):
        """Whether the claim is missed."""
        return self.is_claimed and any(
            misses(share, self.least, self.most, self.n, standard_errors)
            for share in self.shares
        )

    @property
    def cells(self):
        """The row of the table."""
        low, high = (f"{share:.3f}" for share in (min(self.shares), max(self.shares)))
        return (self.name, self.claimed, self.simulated, low, high, str(self.n))


def write(path, table):
    """Writes a table, its heads first, as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
