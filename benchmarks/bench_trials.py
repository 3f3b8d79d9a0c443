"""Prints what the harness adds to each trial of a study of 1,000.

python -m benchmarks.bench_trials [--repeats N]

The process of a trial is a shell that copies the observations of one trial, so nearly
all of the time is the harness's own: directory, environment, processes, records. What a
trial costs must not grow with the trials before it, so the last hundred are compared
with the first.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time
from typing import Any

from benchmarks import runner

LIMIT_SEC = 0.05
NUM_TRIALS = 1000
NUM_COMPARED = 100
GROWTH_LIMIT = 1.2
TESTS = runner.ROOT / "tests" / "harness"


class _Listener:
    """Notes when each trial ends."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def trial_ended(self, *_: object) -> None:
        """Called after every trial."""
        self.times.append(time.perf_counter())

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def measure(num_trials: int) -> list[float]:
    """Seconds of each trial, in a fresh process."""
    from harness.planning import cases, estimate, plan
    from harness.planning.request import SweepRequest
    from harness.run import sweep
    from harness.run.trial_runner import RunSettings, run_trial
    from results.records import Order, Plan, ScalingMode, TrialStatus
    from results.store import Store

    planned = plan.plan_sweep(
        SweepRequest(
            workload="resnet50",
            preset="smoke",
            backends=("in_graph",),
            replicas=(1,),
            modes=(ScalingMode.WEAK,),
            repeats=num_trials + 1,
            order=Order.SEQUENTIAL,
            budget="none",
        ),
        cases.Machine(num_available_cores=2),
    )
    fields: dict[str, Any] = {
        "timeout_sec": 60.0,
        "canary": lambda _core: 0.0,
        "void_reason": lambda _load, _num_retraces: "",
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
        worker = (sys.executable, str(TESTS / "fake_worker.py"))
        run_trial(store, first, RunSettings(worker_command=worker, **fields))
        os.environ["OBSERVED"] = str(store.trial_dir(first.trial_id) / "rank_0.jsonl")
        shell = ("/bin/sh", "-c", 'cp "$OBSERVED" "$0"')
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
    return [
        after - before
        for before, after in zip(listener.times, listener.times[1:], strict=False)
    ]


def main() -> int:
    """Prints the times; returns 1 if a limit is missed."""
    parser = runner.make_parser(__doc__, num_repeats=3)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    arguments = parser.parse_args()
    found = [
        runner.measure(measure, arguments={"num_trials": arguments.trials})
        for _ in range(arguments.num_repeats)
    ]
    means = [sum(times) / len(times) for times in found]
    is_reached = runner.print_value(
        f"harness per trial, of {arguments.trials:,} trials",
        means,
        "s",
        at_most=LIMIT_SEC,
    )
    count = min(NUM_COMPARED, arguments.trials // 2)
    growth = [sum(times[-count:]) / sum(times[:count]) for times in found]
    is_flat = runner.print_value(
        f"the last {count} trials over the first {count}",
        growth,
        "x",
        at_most=GROWTH_LIMIT,
    )
    return int(not (is_reached and is_flat))


if __name__ == "__main__":
    sys.exit(main())
