"""The verb ``resume``: runs the missing trials of a study."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.cli import gpu_readiness, running, varied
from harness.cli.host_options import Launcher
from harness.cli.shared_options import (
    RUNS_DIR,
    AreCheckpointsKept,
    IsJson,
    Retry,
    RunsDir,
    StudyArgument,
)
from harness.command import peers
from harness.launch import catalog
from harness.options.durations import duration
from harness.options.option import Option, Options
from harness.planning import study as study_module
from harness.run import sweep as sweep_loop
from harness.run.trial_runner import RunSettings
from harness.sources import same_code
from harness.sources.code_watch import CodeWatch
from results.store.lock import lock_study
from results.store.study_store import Store

if TYPE_CHECKING:
    from harness.cli.verb import Call


class ResumeRequest(Options):
    """Which study is resumed, and what is changed."""

    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    retry: Retry = None
    are_checkpoints_kept: AreCheckpointsKept = False
    data_dir: Annotated[
        Path | None,
        Option(
            help="Directory of TFDS data sets, if they have moved.",
            default="the plan's",
        ),
    ] = None
    timeout_sec: Annotated[
        float | None,
        Option(
            name="timeout",
            kind=duration(),
            help="Time limit of one trial; a bare number is seconds.",
            default="the plan's",
        ),
    ] = None
    launcher: Launcher = catalog.DEFAULT
    is_json: IsJson = False


def run(request: ResumeRequest, call: Call) -> int:
    """Runs the missing trials of a study, or of each study of a varied one.

    Raises:
      HarnessError: The study's code is not the code that would run now.
      ResultsError: There is no such study, or it cannot be used.
    """
    return varied.for_each(_resume, varied.rewrite_page)(request, call)


def _resume(request: ResumeRequest, call: Call) -> int:
    """Runs the missing trials of a study's plan, and reports.

    Raises:
      HarnessError: The study's code is not the code that would run now.
      ResultsError: There is no such study, or it cannot be used.
    """
    root = study_module.find_study(request.study, request.runs_dir)
    store = Store.open(root)
    plan = store.read_plan()
    study_module.check_trials(plan)
    same_code.check_code(plan, store=store)
    launcher = catalog.start(request.launcher)
    launcher.check(trial.spec for trial in plan.trials)
    launcher.check_folder(root.absolute())
    peers.check_environments(plan.trials, launcher.name, catalog.DEFAULT)
    with lock_study(root):
        missing = sweep_loop.missing_trials(
            store, plan.trials, is_failed_retried=request.retry is not None
        )
        with gpu_readiness.ready(
            missing, call.overrides, study=plan.study, num_hosts=launcher.num_hosts
        ) as replaced:
            watch = CodeWatch(plan, folders={}, left_out=[root.parent, root])
            settings = RunSettings(
                timeout_sec=request.timeout_sec or plan.timeout_sec,
                is_failed_retried=request.retry is not None,
                are_checkpoints_kept=request.are_checkpoints_kept,
                data_dir=plan.data_dir
                if request.data_dir is None
                else str(request.data_dir.absolute()),
                measuring=plan.measuring,
                launcher=launcher,
                changed_code=watch.changed,
                **replaced,
            )
            conclude = functools.partial(
                running.conclude_sweep, is_json=request.is_json
            )
            return running.run_until_done(
                store, plan.trials, settings, root.parent, conclude
            )
