"""Prints how long ``--help`` and a plan of 1,084 trials take, as a user sees it.

python -m benchmarks.bench_cli [--repeats N]
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

from benchmarks import runner
from benchmarks.runner import Figure

# 2 backends x (1 baseline + 3 weak + 3 strong), the A/A control, 72 repetitions, and 4
# quality runs.
PLAN = (
    *("sweep", "--dry-run", "--workload=resnet50", "--preset=laptop"),
    *("--replicas=1,2,4,8", "--repeats=72"),
)


def run(*args: str) -> float:
    """Returns the wall time of a command in seconds."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=runner.ROOT,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - start


WAYS = {
    "help": functools.partial(run, "--help"),
    "plan": functools.partial(run, *PLAN),
}
FIGURES = (
    Figure("python -m harness --help", ("help",), unit="s", at_most=0.4),
    Figure("plan of 1,084 trials", ("plan",), unit="s", at_most=2.0),
)

if __name__ == "__main__":
    sys.exit(not runner.run(__doc__, WAYS, FIGURES, num_repeats=7, show=None))
