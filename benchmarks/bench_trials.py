"""Prints what the harness adds to each trial of a study of 1,000.

python -m benchmarks.bench_trials [--repeats N] [--launcher local|slurm]

The process of a trial is a shell that copies the observations of one trial, so nearly
all of the time is the harness's own: directory, environment, processes, records. What a
trial costs must not grow with the trials before it, so the last hundred are compared
with the first.

Under Slurm (as root, with Debian's packages) a trial has two processes on two nodes,
which are network namespaces of this machine: engine and network are real, the nodes
share the cores. Slurm's own time for a step of two tasks that do nothing is not the
harness's, and subtracted.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import runner

LIMIT_SEC = {"local": 0.05, "slurm": 0.15}
NUM_TRIALS = 1000
NUM_COMPARED = 100
NUM_STEPS = 50
GROWTH_LIMIT = 1.2
TESTS = runner.ROOT / "tests"
# Takes the observations of its own rank.
COPY = 'cp "$OBSERVED/rank_${SLURM_PROCID:-0}.jsonl" "$0"'


class _Listener:
    """Notes when each trial ends."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def trial_ended(self, *_: object) -> None:
        self.times.append(time.perf_counter())

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def measure(num_trials: int, launcher: str) -> dict[str, list[float]]:
    """Seconds of each trial, and of steps of the engine alone, in a fresh process."""
    from harness.launch import launchers
    from harness.planning import checked, estimate, plan
    from harness.planning.request import SweepRequest
    from harness.run import sweep
    from harness.run.trial_runner import RunSettings, run_trial
    from results.records.models import Order, Plan, ScalingMode, TrialStatus
    from results.store.study_store import Store

    starter = launchers.start(launcher)
    valid = checked.check(
        SweepRequest(
            workload="resnet50",
            preset="smoke",
            backends=("in_graph" if launcher == "local" else "multi_worker",),
            replicas=(1 if launcher == "local" else 2,),
            modes=(ScalingMode.WEAK,),
            repeats=num_trials + 1,
            order=Order.SEQUENTIAL,
            budget="none",
        ),
        checked.Machine(num_available_cores=2, variables=starter.identity()),
    )
    planned, _ = plan.arrange(valid)
    fields: dict[str, Any] = {
        "launcher": starter,
        "timeout_sec": 60.0,
        "canary": lambda _core: 0.0,
        "discard_reason": lambda _load, _num_retraces: "",
    }
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(pathlib.Path(folder) / "runs" / "s")
        store.write_plan(
            Plan(
                study="s",
                created_at="2026-01-01T00:00:00+00:00",
                command=("python", "-m", "harness"),
                baseline_num_replicas=1,
                repeats=num_trials + 1,
                seed=0,
                timeout_sec=60.0,
                trials=planned.trials,
            )
        )
        first, *others = planned.trials
        worker = (sys.executable, str(TESTS / "harness" / "fake_worker.py"))
        run_trial(store, first, RunSettings(worker_command=worker, **fields))
        os.environ["OBSERVED"] = str(store.trial_dir(first.trial_id))
        shell = ("/bin/sh", "-c", COPY)
        listener = _Listener()
        sweep.run_trials(
            store,
            others,
            RunSettings(worker_command=shell, **fields),
            listener,  # type: ignore[arg-type]
            estimate.Durations(),
        )
        statuses = {trial.status.status for trial in store.trials() if trial.status}
        if statuses != {TrialStatus.OK}:
            raise runner.BenchmarkError(f"trials ended as {statuses}")
    return {
        "trials": _differences(listener.times),
        "engine": _steps_of_slurm(NUM_STEPS) if launcher == "slurm" else [],
    }


def _steps_of_slurm(number: int) -> list[float]:
    from harness.launch import slurm

    times = [time.perf_counter()]
    for _ in range(number):
        subprocess.run(
            [*slurm.srun(2, 2), "--ntasks-per-node=1", "/bin/true"], check=True
        )
        times.append(time.perf_counter())
    return _differences(times)


def _differences(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def measure_in_job(num_trials: int) -> dict[str, list[float]]:
    sys.path.append(str(TESTS / "support"))
    import slurm_cluster

    if reason := slurm_cluster.missing():
        raise runner.BenchmarkError(f"a cluster of Slurm {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster.running(pathlib.Path(folder)) as cluster,
    ):
        result, log = pathlib.Path(folder, "result.json"), pathlib.Path(folder, "log")
        process = runner.Process(
            function=measure,
            arguments={"num_trials": num_trials, "launcher": "slurm"},
            cores=(),
        )
        subprocess.run(
            cluster.job(process.argv(str(result)), log=log, cwd=runner.ROOT),
            check=False,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(runner.ROOT)},
        )
        if not result.exists():
            raise runner.BenchmarkError(f"the job failed: {log.read_text()[-1000:]}")
        times: dict[str, list[float]] = json.loads(result.read_text(encoding="utf-8"))
        return times


def main() -> int:
    """Prints the times; returns 1 if a limit is missed."""
    parser = runner.make_parser(__doc__, num_repeats=3)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--launcher", choices=LIMIT_SEC, default="local")
    arguments = parser.parse_args()
    launcher, num_trials = arguments.launcher, arguments.trials
    repeats = [
        measure_in_job(num_trials)
        if launcher == "slurm"
        else runner.measure(measure, num_trials=num_trials, launcher=launcher)
        for _ in range(arguments.num_repeats)
    ]
    trials = [one["trials"] for one in repeats]
    means = [statistics.fmean(times) for times in trials]
    if launcher == "slurm":
        title = f"a trial, of {num_trials:,} trials, slurm"
        runner.print_figure(title, means, unit="s")
        steps = [statistics.fmean(one["engine"]) for one in repeats]
        runner.print_figure("a step of Slurm that does nothing", steps, unit="s")
        means = [whole - own for whole, own in zip(means, steps, strict=True)]
    is_reached = runner.print_figure(
        f"harness per trial, of {num_trials:,} trials, {launcher}",
        means,
        unit="s",
        at_most=LIMIT_SEC[launcher],
    )
    count = min(NUM_COMPARED, num_trials // 2)
    growth = [sum(times[-count:]) / sum(times[:count]) for times in trials]
    title = f"the last {count} trials over the first {count}"
    is_flat = runner.print_figure(title, growth, unit="x", at_most=GROWTH_LIMIT)
    return int(not (is_reached and is_flat))


if __name__ == "__main__":
    sys.exit(main())
