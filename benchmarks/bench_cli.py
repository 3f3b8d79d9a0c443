"""Prints how long ``--help`` and a plan of 1,000 trials take, as a user sees it.

python -m benchmarks.bench_cli
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUM_RUNS = 7
HELP_LIMIT_SEC = 0.4
PLAN_LIMIT_SEC = 2.0
# 2 backends x (1 baseline + 3 weak + 3 strong) x 72 repetitions = 1,008 trials.
PLAN = (
    "plan",
    "--workload=resnet50",
    "--preset=laptop",
    "--replicas=1,2,4,8",
    "--repeats=72",
)


def measure(*args: str) -> tuple[float, int]:
    """Returns the median wall time in seconds and the lines of output."""
    seconds, num_lines = [], 0
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "harness", *args],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        seconds.append(time.perf_counter() - start)
        num_lines = len(done.stdout.splitlines())
    return statistics.median(seconds), num_lines


def main() -> int:
    """Prints the table; returns 1 if a limit is missed."""
    help_sec, _ = measure("--help")
    plan_sec, num_lines = measure(*PLAN)
    rows = (
        ("python -m harness --help", help_sec, HELP_LIMIT_SEC),
        (f"plan of {num_lines - 1:,} trials", plan_sec, PLAN_LIMIT_SEC),
    )
    print(f"{'what':<28}{'median of ' + str(NUM_RUNS):>14}{'limit':>10}")
    for what, seconds, limit in rows:
        print(f"{what:<28}{seconds:>12.3f} s{limit:>8.1f} s")
    return int(any(seconds > limit for _, seconds, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
