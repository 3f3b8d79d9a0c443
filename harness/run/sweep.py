"""The sweep loop: runs the missing trials of a plan, one at a time."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from harness.errors import Interrupted
from harness.run.trial_runner import run_trial
from results.records import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.planning.estimate import Durations
    from harness.run.listener import Progress
    from harness.run.trial_runner import RunSettings
    from results.records import PlannedTrial
    from results.store import Store

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into ``Interrupted`` while the block runs."""

    def stop(number: int, _frame: object) -> None:
        # One is enough: a second one must not interrupt the cleanup.
        for other in _STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before: dict[int, Any] = {n: signal.signal(n, stop) for n in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def missing_trials(
    store: Store, trials: Sequence[PlannedTrial], *, is_failed_retried: bool
) -> list[PlannedTrial]:
    """Returns the trials that are to run, in order.

    A trial is finished when its status is recorded; a failure is finished too, unless
    failures are retried.
    """
    finished = {
        trial.trial_id
        for trial in store.trials()
        if trial.status is not None
        and (trial.status.status is TrialStatus.OK or not is_failed_retried)
    }
    return [trial for trial in trials if trial.trial_id not in finished]


def run_trials(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    progress: Progress,
    durations: Durations,
) -> None:
    """Runs the missing ``trials``; each is recorded as soon as it ends.

    Args:
      store: The study; the caller holds its lock.
      trials: The requested trials, in execution order.
      settings: How to run them.
      progress: Receives the events.
      durations: Earlier durations, for the time remaining; new ones are added.

    Raises:
      Interrupted: By a signal; the current trial is killed and gets no status.
    """
    missing = missing_trials(
        store, trials, is_failed_retried=settings.is_failed_retried
    )
    progress.begin(len(trials), len(trials) - len(missing))
    try:
        for index, trial in enumerate(missing):
            specs = [other.spec for other in missing[index:]]
            progress.trial_started(trial, durations.remaining_sec(specs))
            status = run_trial(store, trial, settings)
            durations.add(trial.spec, status.duration_sec)
            result = store.read_trial(trial.trial_id).result
            progress.trial_ended(trial, status, result)
    finally:
        progress.end()
