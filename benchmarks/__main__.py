"""Runs every benchmark, one after the other: `make bench`.

python -m benchmarks
"""

from __future__ import annotations

import subprocess
import sys

COMMANDS = (
    ("command line", [sys.executable, "-m", "benchmarks.bench_cli"]),
    ("report", [sys.executable, "-m", "benchmarks.bench_report"]),
    ("engine", [sys.executable, "-m", "pytest", "-q", "benchmarks/bench_engine.py"]),
    ("optimizer", [sys.executable, "-m", "benchmarks.bench_optimizer"]),
    ("replicator", [sys.executable, "-m", "benchmarks.bench_replicator"]),
    (
        "replicator, memory kept by malloc",
        [sys.executable, "-m", "benchmarks.bench_replicator", "--malloc", "keep"],
    ),
    ("workers", [sys.executable, "-m", "benchmarks.bench_multi_worker"]),
    ("input pipelines", [sys.executable, "-m", "benchmarks.bench_input"]),
    ("metrics", [sys.executable, "-m", "benchmarks.bench_metrics"]),
    ("precision", [sys.executable, "-m", "benchmarks.bench_precision"]),
    ("parameter servers", [sys.executable, "-m", "benchmarks.bench_async"]),
    ("actors and replay", [sys.executable, "-m", "benchmarks.bench_d4pg"]),
)


def main() -> int:
    """Runs the commands; returns 1 if one of them could not measure."""
    failed = []
    for title, command in COMMANDS:
        print(f"\n== {title}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(title)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
