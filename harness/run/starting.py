"""Starts the processes of a relay, as many at a time as there are cores.

Nothing of a start is timed in a relay, so that processes import TensorFlow, build and
trace side by side. When one is ready the next one starts: backends take unlike times.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Final

from harness.errors import DoesNotFitError
from harness.run.resident import ResidentEndedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.run.resident import Resident

_HEADROOM: Final = 1.2
"""Factor on the largest so far, when looking whether one more fits."""


def start_side_by_side(
    residents: Sequence[Resident],
    announce: Callable[[Resident, int], None],
    free_memory: Callable[[], int],
) -> None:
    """Starts all processes, and returns when each has built its program or ended."""
    num_cores = len({core for resident in residents for core in resident.cores})
    waiting = collections.deque(residents)
    starting: list[Resident] = []
    sizes: dict[str, int] = {}
    while waiting or starting:
        while waiting and len(starting) < num_cores:
            started = residents[: len(residents) - len(waiting)]
            growth = [_size(r, sizes) - r.resident_bytes() for r in starting]
            needed = _size(waiting[0], sizes) + sum(max(0, more) for more in growth)
            _check_memory(len(residents), started, needed, free_memory())
            starting.append(waiting.popleft())
            announce(starting[-1], len(started) + 1)
            starting[-1].start()
            starting[-1].expect("imported")
        began, busy = time.monotonic(), tuple(starting)
        for resident in busy:
            if _advance(resident, is_alone=num_cores == 1):
                starting.remove(resident)
                backend = resident.prepared.trial.spec.backend
                size = resident.resident_bytes()
                sizes[backend] = max(sizes.get(backend, 0), size)
        for resident in busy:
            resident.busy_sec += (time.monotonic() - began) / len(busy)


def _size(resident: Resident, sizes: Mapping[str, int]) -> int:
    """Returns the bytes that a process may need.

    The most that others of its backend occupy, or of any backend where it is the first.
    """
    largest = max(sizes.values(), default=0)
    return round(_HEADROOM * sizes.get(resident.prepared.trial.spec.backend, largest))


def _advance(resident: Resident, *, is_alone: bool) -> bool:
    """Whether a process has built its program, or has ended, after a moment more."""
    try:
        answers = resident.poll()
        if answers is None:
            return False
        if resident.awaited == "built":
            return True
        resident.send("build", is_alone=is_alone)
        resident.expect("built")
    except ResidentEndedError:
        return True
    return False


def _check_memory(
    num_residents: int, started: Sequence[Resident], needed: int, free: int
) -> None:
    """Raises if what starts may not fit beside what has started."""
    if needed <= free:
        return
    used = sum(resident.resident_bytes() for resident in started)
    raise DoesNotFitError(
        f"{num_residents} processes do not fit into memory at once: the first"
        f" {len(started)} occupy {used / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are"
        f" free, and the next may need {needed / 2**30:.1f} GiB"
    )
