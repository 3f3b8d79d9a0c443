"""The sweep loop: runs what is missing of a plan, one trial at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import (
    aggregate,
    canary,
    catalog,
    checkpoints,
    environment,
    foreign_load,
    gpus,
    launch,
    placement,
    process_tree,
)
from harness.errors import Interrupted, PlanError, StudyError
from harness.processes import processes_of
from harness.study import now_text
from results.records import StatusRecord, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.estimate import Durations
    from harness.progress import Progress
    from harness.topology import CpuTopology
    from results.records import PlannedTrial
    from results.store import Store

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """How trials are run; tests replace the worker and the canary.

    Attributes:
      timeout_sec: Longest duration of one trial.
      topology: The CPUs to use.
      is_failed_retried: Whether recorded failures are run again.
      worker_command: The process of a trial; its directory is appended.
      canary: Returns the seconds of the fixed computation on a core.
      are_checkpoints_kept: Whether the last checkpoint of a quality run stays when it
        came to its end; that of one that failed always stays.
      data_dir: Where TFDS sets are; by default where TFDS looks.
    """

    timeout_sec: float
    topology: CpuTopology
    is_failed_retried: bool = False
    worker_command: Sequence[str] = launch.WORKER_COMMAND
    canary: Callable[[int | None], float] = canary.run_canary
    are_checkpoints_kept: bool = False
    data_dir: str | None = None


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into ``Interrupted`` while the block runs."""

    def stop(number: int, _frame: object) -> None:
        # One is enough: a second one must not break the cleaning up.
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
    """Runs the missing ones of ``trials``; each is recorded as soon as it has ended.

    Args:
      store: The study; the caller holds its lock.
      trials: What was asked for, in execution order.
      settings: How to run them.
      progress: Who is told.
      durations: Earlier durations, for the time remaining; is added to.

    Raises:
      Interrupted: By a signal; the current trial is killed and leaves no status.
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


def run_trial(store: Store, trial: PlannedTrial, settings: RunSettings) -> StatusRecord:
    """Runs one trial and records it: spec, environment, result, and status last.

    Raises:
      Interrupted: By a signal; the tree is killed, and no status is written.
    """
    spec, trial_id = trial.spec, trial.trial_id
    trial_dir = store.trial_dir(trial_id)
    clean_trial_dir(trial_dir)
    started_at, start = now_text(), time.monotonic()
    store.write_spec(trial_id, spec)
    processes = processes_of(catalog.backend(spec.backend), spec.num_replicas)
    place = placement.place(
        settings.topology,
        num_replicas=spec.num_replicas,
        cores_per_replica=spec.cores_per_replica,
        device=spec.device,
        processes=processes,
    )
    command = tuple(settings.worker_command)
    if processes.is_cluster:
        command = (*launch.CLUSTER_COMMAND, *command)
    gpu_ids = _gpu_ids(spec.num_replicas) if spec.device == "gpu" else ()
    variables = launch.trial_variables(
        spec, place, trial_dir, gpu_ids=gpu_ids, data_dir=settings.data_dir
    )
    env = environment.read_environment(
        place, variables, gpus=gpus.gpu_names() if gpu_ids else ()
    )
    core = place.cpusets[0][0]
    env = env.model_copy(update={"canary_before_sec": settings.canary(core)})
    store.write_env(trial_id, env)
    clock = foreign_load.read_clock()
    trial_exit = launch.run_tree(
        trial_dir,
        variables,
        timeout_sec=settings.timeout_sec,
        command=command,
    )
    load = foreign_load.between(clock, foreign_load.read_clock(), env.num_logical_cores)
    after = {
        "foreign_cpu_fraction": load.foreign_fraction,
        "stolen_cpu_fraction": load.stolen_fraction,
        "load_average_after": os.getloadavg()[0],
        "canary_after_sec": settings.canary(core),
    }
    store.write_env(trial_id, env.model_copy(update=after))
    conclusion = aggregate.conclude(
        trial_id, spec, trial_dir, trial_exit, num_ranks=processes.num_ranks
    )
    is_ok = conclusion.status is TrialStatus.OK
    if is_ok and not settings.are_checkpoints_kept:
        checkpoints.remove(trial_dir)
    if conclusion.result is not None:
        store.write_result(trial_id, conclusion.result)
    status = StatusRecord(
        trial_id=trial_id,
        status=conclusion.status,
        started_at=started_at,
        ended_at=now_text(),
        duration_sec=time.monotonic() - start,
        exit_code=trial_exit.exit_code,
        failure=conclusion.failure,
    )
    store.write_status(trial_id, status)
    return status


def clean_trial_dir(trial_dir: os.PathLike[str]) -> None:
    """Removes what an interrupted trial left: its processes, then its files."""
    if not os.path.lexists(trial_dir):
        return
    process_tree.kill_tree(os.path.realpath(trial_dir))
    try:
        if Path(trial_dir).is_symlink() or not Path(trial_dir).is_dir():
            # Not a folder of ours: what it leads to stays.
            Path(trial_dir).unlink()
            return
        # The status first: whatever interrupts this, the trial counts as unfinished.
        status = Path(trial_dir, "status.json")
        if status.is_dir() and not status.is_symlink():
            shutil.rmtree(status)
        status.unlink(missing_ok=True)
        shutil.rmtree(trial_dir)
    except OSError as error:
        raise StudyError(
            f"cannot remove {str(trial_dir)!r} of an earlier run:"
            f" {error.strerror or error}; remove it by hand"
        ) from error


def _gpu_ids(num_replicas: int) -> tuple[str, ...]:
    ids = gpus.visible_gpus()
    if len(ids) < num_replicas:
        raise PlanError(
            f"the trial needs {num_replicas} GPUs, but this machine shows {len(ids)};"
            " continue the study on the machine it was planned for"
        )
    return ids[:num_replicas]
