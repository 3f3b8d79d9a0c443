"""How far the speed of a machine moved while a study was measured."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import TYPE_CHECKING

from results.records.models import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reports.view.view import View
    from results.study.cases import Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Relative changes of the time of a fixed computation."""

    # Largest over smallest median, minus 1; of what ran at about the same time. It is
    # what counts: a single reading can be disturbed.
    of_medians: float
    of_readings: float  # The same of single readings.
    unit: str  # What ran at about the same time: ``trial`` or ``generation``.


def of_entries(view: View, entries: Iterable[Entry]) -> Drift | None:
    """Returns the drift over some trials of a study; None where it was not recorded.

    In a relay the trials of a generation lie side by side.
    """
    is_relay = view.study.plan.measuring.order is Order.RELAY
    found: dict[str | int, list[float]] = collections.defaultdict(list)
    for entry in entries:
        if entry.trial is None or entry.trial.env is None:
            continue
        env = entry.trial.env
        is_of_generation = is_relay and entry.spec.budget is None
        key = entry.spec.repetition_index if is_of_generation else entry.trial_id
        canaries = (env.canary_before_sec, env.canary_after_sec)
        found[key] += [seconds for seconds in canaries if seconds]
    medians = [statistics.median(readings) for readings in found.values() if readings]
    if not medians:
        return None
    readings = [seconds for group in found.values() for seconds in group]
    return Drift(
        of_medians=max(medians) / min(medians) - 1,
        of_readings=max(readings) / min(readings) - 1,
        unit="generation" if is_relay else "trial",
    )
