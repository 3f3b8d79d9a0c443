"""``sweep --study NAME`` alone: runs what a study that was begun still lacks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from harness.cli import gpu_readiness, running, varied
from harness.command import peers
from harness.errors import PlanError
from harness.launch import catalog
from harness.planning import study as study_module
from harness.run import sweep as sweep_loop
from harness.run.trial_runner import RunSettings
from harness.sources import code_digest
from harness.sources.code_digest import CodeWatch
from results.store.lock import lock_study
from results.store.study_store import Store

if TYPE_CHECKING:
    from harness.cli.verb import Call
    from harness.cli.verbs.sweep_verb import RunRequest

_TAKEN = {
    *("study", "runs_dir", "retry", "timeout_sec", "launcher"),
    *("launcher_options", "is_json"),
}
"""What may be said anew of a study that is continued."""


def is_continued(request: RunRequest) -> bool:
    """Whether a request names nothing to measure but a study."""
    return bool(request.study) and not request.workload and request.command is None


def run(request: RunRequest, call: Call) -> int:
    """Runs the missing trials of a study, or of each study of a varied one."""
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name not in _TAKEN and value != field.get_default(call_default_factory=True):
            raise PlanError(
                f"--{name.removeprefix('is_').replace('_', '-')} has no effect on a"
                f" study that is continued by its name; leave it out, or repeat the"
                f" whole command of study {request.study!r} to extend it"
            )
    return varied.for_each(_continue, varied.rewrite_page)(request, call)


def _continue(request: RunRequest, call: Call) -> int:
    root = study_module.find_study(str(request.study), request.runs_dir)
    store = Store.open(root)
    plan = store.read_plan()
    study_module.check_trials(plan)
    code_digest.check_code(plan, store=store)
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
                timeout_sec=plan.timeout_sec
                if request.timeout_sec == _usual(request, "timeout_sec")
                else request.timeout_sec,
                is_failed_retried=request.retry is not None,
                data_dir=study_module.data_dir_here() or plan.data_dir,
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


def _usual(request: RunRequest, name: str) -> object:
    return type(request).model_fields[name].default
