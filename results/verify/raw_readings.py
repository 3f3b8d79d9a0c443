"""Derives the result of a trial of a user's program anew from the numbers it printed.

For ``verify``: nothing here uses the code that wrote the record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Fields = dict[str, Any]

_FEWEST = 3


def derive(trial_id: str, lines: Sequence[Fields], num_warmup: int) -> Fields:
    """Returns what looks like ``result.json``."""
    of = {line["kind"]: line for line in lines}
    facts, used = of["facts"], of["used"]
    readings = [line for line in lines if line["kind"] == "reading"]
    batch, replicas = facts["global_batch_size"], facts["num_replicas"]
    times = [  # none of a rate of 0, which stands in the warm-up only
        _seconds(facts["metric"], line["value"], batch, replicas)
        if line["value"]
        else None
        for line in readings
    ]
    printed = [line["ns"] for line in readings]
    is_window = len(times) >= num_warmup + _FEWEST
    first = num_warmup if is_window else len(times) - 1
    evidence, num_why = "last", 1
    if is_window:
        gaps = [b - a for a, b in zip(printed[first:], printed[first + 1 :])]  # noqa: B905 - pairs
        is_timed = printed[-1] > 0 and 2 * gaps.count(0) <= len(times) - first
        evidence = "window" if is_timed else "rows"
        num_why = int(not is_timed and printed[-1] > 0)
    return {
        "trial_id": trial_id,
        "example_unit": facts["example_unit"],
        "num_parameters": 0,
        "flops_per_example": None,
        "global_batch_size": batch,
        "num_measured_steps": len(times) - first,
        "window_sec": math.fsum(filter(None, times[first:])),
        "turns": [],
        "ranks": [
            {
                "rank": 0,
                "time_to_first_step_sec": 0.0,
                "warmup_step_time_sec": [time for time in times[:first] if time],
                "step_time_sec": times[first:],
                "window_start_ns": printed[max(first - 1, 0)],
                "window_end_ns": printed[-1],
                "losses": [],
                "peak_memory_bytes": of["memory"]["peak_memory_bytes"],
                "peak_flops_per_sec": None,
            }
        ],
        "window_metrics": [
            {name: value for name, value in line.items() if name != "kind"}
            for line in lines
            if line["kind"] == "window_metric"
        ],
        "readings": {
            "evidence": evidence,
            "num_readings": len([time for time in times if time]),
            "num_processes": used["num_processes"],
            "busy_cores": used["busy_cores"],
            "advances": used.get("advances", []),
            "num_remarks": num_why + len(used["remarks"]),
        },
    }


def _seconds(name: str, value: float, batch: int, replicas: int) -> float:
    """Returns the seconds of a global batch that a printed number stands for."""
    if name == "step_time":
        return value
    if name == "step_time_ms":
        return value / 1000
    if name == "throughput_per_replica":
        return batch / (value * replicas)
    if name == "throughput":
        return batch / value
    raise ValueError(f"unknown metric {name!r}")
