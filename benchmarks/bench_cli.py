"""Prints how long ``--help`` and a plan of 1,000 trials take, as a user sees it.

python -m benchmarks.bench_cli [--repeats N]
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

from benchmarks import runner

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


def run(*args: str) -> tuple[float, int]:
    """Returns the wall time of a command in seconds and its lines of output."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=runner.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - start, len(done.stdout.splitlines())


def main() -> int:
    """Prints the times; returns 1 if a limit is missed."""
    arguments = runner.make_parser(__doc__, num_repeats=7).parse_args()
    ways = {
        "help": functools.partial(run, "--help"),
        "plan": functools.partial(run, *PLAN),
    }
    found = runner.take_turns(ways, arguments.num_repeats)
    sec = {name: [one for one, _ in runs] for name, runs in found.items()}
    num_trials = found["plan"][0][1] - 1
    limits = [
        ("python -m harness --help", sec["help"], HELP_LIMIT_SEC),
        (f"plan of {num_trials:,} trials", sec["plan"], PLAN_LIMIT_SEC),
    ]
    reached = [
        runner.print_value(title, values, "s", at_most=limit)
        for title, values, limit in limits
    ]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
