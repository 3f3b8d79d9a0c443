"""The cores of a peer's process."""

from __future__ import annotations

import os


def share_of(process: int, num_processes: int, *, is_taken: bool = True) -> int:
    """Returns how many cores a process has: an equal share of those there are."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // num_processes)
    first = process * share % len(cores)
    if is_taken:
        os.sched_setaffinity(0, cores[first : first + share])
    return share
