"""Clocks: how far those of workers are apart, with a bound that needs no trust in them.

An exchange in which no worker returns before all have called it orders events: the call
of each worker is before the return of every other. With the times of calls and returns
by each worker's own clock, what has to be added to a clock has a lower and an upper
limit, as with the four times of NTP (Mills 1991); of many exchanges, the narrowest
limits hold. No delay of the network is assumed.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_EXCHANGES = 50


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """What is known of a worker's clock.

    Attributes:
      offset_sec: What is added to its times for those of worker 0.
      bound_sec: The largest error of that.
    """

    offset_sec: float
    bound_sec: float


def compare(
    gather: Callable[[bytes], list[bytes]],
    now: Callable[[], float] = time.time,
    num_exchanges: int = NUM_EXCHANGES,
) -> list[Clock]:
    """Compares the clocks of all workers with that of worker 0; every worker calls it.

    Args:
      gather: ``Replicator.gather_bytes``.
      now: The clock of this worker, in seconds.
      num_exchanges: How many times they meet.

    Returns:
      By worker, its clock.
    """
    own = []
    for _ in range(num_exchanges):
        called = now()
        gather(b"")
        own.append((called, now()))
    return limits([json.loads(text) for text in gather(json.dumps(own).encode())])


def limits(meetings: Sequence[Sequence[tuple[float, float]]]) -> list[Clock]:
    """Returns the clocks from the times of calls and returns.

    Args:
      meetings: By worker and exchange, when it called and when the call returned, by
        its own clock.
    """
    found = []
    for own in meetings:
        pairs = list(zip(meetings[0], own, strict=True))
        least = max(first[0] - other[1] for first, other in pairs)
        most = min(first[1] - other[0] for first, other in pairs)
        found.append(Clock(offset_sec=(least + most) / 2, bound_sec=(most - least) / 2))
    found[0] = Clock(offset_sec=0.0, bound_sec=0.0)
    return found
