"""Model FLOP utilisation of the cases of a study, as a table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from reports.words import formats
from results.figures import table

if TYPE_CHECKING:
    from reports.view.view import View

_GIGA = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """What cases reach of the rate that matrix products reach on the same devices."""

    peak: str  # That rate, in GFLOP/s per replica.
    # Backend, replicas, batch per replica, utilisation with its interval, and n.
    rows: tuple[tuple[str, int, int, str, int], ...]


def of_view(view: View) -> Utilisation | None:
    """Returns the utilisation of every case where it was measured; None without any."""
    rows = []
    peaks: list[float] = []
    for case in view.measured_cases:
        estimate = table.of_trials(case, "flop_utilisation").estimate
        if estimate is None:
            continue
        spec = case.spec
        figure = formats.estimate(estimate, formats.percent)
        size, batch = spec.num_replicas, spec.per_replica_batch_size
        rows.append((spec.backend, size, batch, figure, estimate.n))
        peaks += [
            sum(rank.peak_flops_per_sec or 0.0 for rank in entry.result.ranks)
            / (size * _GIGA)
            for entry in case.ok_entries
        ]
    if not rows:
        return None
    ends = dict.fromkeys(map(formats.significant, (min(peaks), max(peaks))))
    return Utilisation(peak=" to ".join(ends), rows=tuple(rows))
