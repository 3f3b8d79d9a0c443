"""Model FLOP utilisation of the cases of a study, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.words import formats
from results.figures import table

if TYPE_CHECKING:
    from reports.view.view import View

_GIGA = 1e9


def line(view: View) -> str:
    """Returns the utilisation of every case where it was measured; "" without any."""
    parts: list[str] = []
    peaks: list[float] = []
    for case in view.measured_cases:
        estimate = table.of_trials(case, "flop_utilisation").estimate
        if estimate is None:
            continue
        figure = formats.in_words(estimate, formats.percent)
        spec = case.spec
        parts.append(
            f"{spec.backend} x{spec.num_replicas} with {spec.per_replica_batch_size}"
            f" per replica {figure}, n = {estimate.n}"
        )
        peaks += [
            sum(rank.peak_flops_per_sec or 0.0 for rank in entry.result.ranks)
            / (case.spec.num_replicas * _GIGA)
            for entry in case.ok_entries
        ]
    if not parts:
        return ""
    ends = dict.fromkeys(map(formats.significant, (min(peaks), max(peaks))))
    return (
        "Model FLOP utilisation, of the rate that matrix products reach on the same"
        f" devices ({' to '.join(ends)} GFLOP/s per replica):"
        f" {'; '.join(parts)}; n counts {view.repetitions}."
    )
