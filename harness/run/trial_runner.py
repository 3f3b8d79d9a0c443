"""Runs one trial: places it, starts its processes, and records the outcome.

Whatever this module imports may change a trial's numbers, and is part of the trial's
code digest (``harness/planning/code_digest.py``); planning, listing and showing are
elsewhere.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError, StudyError
from harness.machine import canary, environment, foreign_load, gpus
from harness.machine.time_of_day import now_text
from harness.machine.topology import CpuTopology, read_topology
from harness.placement import allocation as placement
from harness.placement.processes import processes_of
from harness.run import aggregate, launch, process_tree
from harness.trial import checkpoints
from results.records import StatusRecord, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from results.records import PlannedTrial
    from results.store import Store


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """How trials are run; tests replace the worker and the canary.

    Attributes:
      timeout_sec: Time limit of one trial.
      topology: The CPUs to use; by default those that this process may use.
      is_failed_retried: Whether recorded failures are run again.
      worker_command: The process of a trial; its directory is appended.
      canary: Returns the seconds of the fixed computation on a core.
      are_checkpoints_kept: Whether the last checkpoint of a completed quality run is
        kept; that of a failed one is always kept.
      data_dir: Directory of TFDS data sets; by default that of TFDS.
    """

    timeout_sec: float
    topology: CpuTopology = dataclasses.field(default_factory=read_topology)
    is_failed_retried: bool = False
    worker_command: Sequence[str] = launch.WORKER_COMMAND
    canary: Callable[[int | None], float] = canary.run_canary
    are_checkpoints_kept: bool = False
    data_dir: str | None = None


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
            # A symbolic link: its target is not ours and stays.
            Path(trial_dir).unlink()
            return
        # The status first: if this is interrupted, the trial counts as unfinished.
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
