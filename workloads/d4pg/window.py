"""Counters of actors, replay and learner between two points in time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from workloads import quality
from workloads.d4pg import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.spec import QualityMetric


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters so far; the difference of two covers the time between them."""

    num_environment_steps: int  # Environment steps of all actors.
    num_episodes: int  # Completed episodes.
    num_sampled: int = 0  # Transitions sampled from replay.
    wait_sec: float = 0.0  # Time that sampling has waited for actors.
    idle_sec: float  # Total time that actors have waited for the learner.
    elapsed_sec: float  # Total time that actors have run.
    num_refused: int  # Environment steps that were not finite.
    num_restarts: int  # Actors that were replaced.


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """One process at one point in time."""

    time_sec: float  # Monotonic time.
    num_learner_steps: int  # Learner steps so far.
    counters: Sequence[Counters]  # Counters of each pipeline of the process.

    def until(self, after: Window) -> dict[str, float]:
        """Returns the changes in one process between this and a later point in time."""
        found = {
            field.name: float(
                sum(getattr(counters, field.name) for counters in after.counters)
                - sum(getattr(counters, field.name) for counters in self.counters)
            )
            for field in dataclasses.fields(Counters)
        }
        return {
            **found,
            "window_sec": after.time_sec - self.time_sec,
            "num_learner_steps": float(
                after.num_learner_steps - self.num_learner_steps
            ),
            "num_pipelines": float(len(after.counters)),
        }


def total(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the changes over all parts of a window, which may have gaps between."""
    found = {name: sum(part[name] for part in parts) for name in parts[0]}
    return {**found, "num_pipelines": parts[-1]["num_pipelines"]}


def describe(
    processes: Sequence[dict[str, float]], *, global_batch_size: int
) -> tuple[QualityMetric, ...]:
    """Returns the figures of a trial from those of its processes."""
    window_sec = max(process["window_sec"] for process in processes)
    num_steps = int(processes[0]["num_learner_steps"])
    if not num_steps or window_sec <= 0:
        return ()
    totals = {
        **{name: sum(of[name] for of in processes) for name in processes[0]},
        "window_sec": window_sec,
        "num_learner_steps": num_steps,
        "num_transitions": num_steps * global_batch_size,
        "num_processes": len(processes),
    }
    found = ((metric, metric.of(totals)) for metric in metrics.OF_WINDOW if metric.of)
    return tuple(
        quality.counted(metric, value, num_examples=num_steps)
        for metric, value in found
        if value is not None
    )
