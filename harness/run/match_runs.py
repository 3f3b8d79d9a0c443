"""Runs the trials that match N replicas with one, side by side: nothing is timed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from harness.run import trial_runner, trial_tree
from results.records.models import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.run.trial_runner import RunSettings
    from results.records.models import Plan, PlannedTrial
    from results.store.study_store import Store


def run_missing(
    store: Store,
    plan: Plan,
    settings: RunSettings,
    stage: Callable[[str, float | None], None],
) -> None:
    """Runs what is missing of the trials that match; as many at once as cores.

    On GPUs one after the other, since they would share memory.
    """
    if plan.matching is None:
        return
    missing = _missing(
        store, plan.matching.trials, is_failed_retried=settings.is_failed_retried
    )
    if not missing:
        return
    num_together = settings.topology.num_available_cores
    if missing[0].spec.device == "gpu":
        num_together = 1
    for first in range(0, len(missing), num_together):
        batch = missing[first : first + num_together]
        names = ", ".join(
            f"{trial.spec.backend} x{trial.spec.num_replicas}" for trial in batch
        )
        stage(
            f"matching replicas with one, untimed: {names}"
            f" ({first + len(batch)} of {len(missing)})",
            None,
        )
        _run_together(store.matching, batch, settings)


def _missing(
    store: Store, trials: Sequence[PlannedTrial], *, is_failed_retried: bool
) -> list[PlannedTrial]:
    finished = {
        trial.trial_id
        for trial in store.matching.trials()
        if trial.status is not None
        and (trial.status.status is TrialStatus.OK or not is_failed_retried)
    }
    return [trial for trial in trials if trial.trial_id not in finished]


def _run_together(
    store: Store, trials: Sequence[PlannedTrial], settings: RunSettings
) -> None:
    """Starts trials at once, waits for each, and records it."""
    with contextlib.ExitStack() as stack:
        started = []
        for trial in trials:
            prepared = trial_runner.prepare(store, trial, settings)
            tree = trial_runner.tree_of(prepared, settings.launcher)
            started.append((prepared, stack.enter_context(tree)))
        deadline = time.monotonic() + settings.timeout_sec
        for prepared, tree in started:
            trial_exit = trial_tree.finish(
                tree,
                timeout_sec=max(deadline - time.monotonic(), 0.0),
                limit_sec=settings.timeout_sec,
            )
            trial_runner.record(store, prepared, trial_exit, settings, disturbance={})
