"""Runs benchmarks, one after the other: all with `make bench`, or those that are named.

python -m benchmarks [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

_PYTHON = sys.executable
COMMANDS = {
    "command-line": [_PYTHON, "-m", "benchmarks.bench_cli"],
    "trials": [_PYTHON, "-m", "benchmarks.bench_trials"],
    "report": [_PYTHON, "-m", "benchmarks.bench_report"],
    "measuring": [_PYTHON, "-m", "benchmarks.bench_measuring"],
    "client": [_PYTHON, "-m", "benchmarks.bench_client"],
    "engine": [_PYTHON, "-m", "pytest", "-q", "tests/benchmarks/micro/bench_engine.py"],
    "dispatch": [_PYTHON, "-m", "benchmarks.bench_dispatch"],
    "fit": [_PYTHON, "-m", "benchmarks.bench_fit"],
    "pipeline": [_PYTHON, "-m", "benchmarks.bench_pipeline"],
    "optimizer": [_PYTHON, "-m", "benchmarks.bench_optimizer"],
    "sharding": [_PYTHON, "-m", "benchmarks.bench_sharding"],
    "replicator": [_PYTHON, "-m", "benchmarks.bench_replicator"],
    # The same with memory that malloc keeps.
    "replicator-kept": [
        _PYTHON,
        "-m",
        "benchmarks.bench_replicator",
        "--allocator",
        "keep",
    ],
    "workers": [_PYTHON, "-m", "benchmarks.bench_multi_worker"],
    "input": [_PYTHON, "-m", "benchmarks.bench_input"],
    "metrics": [_PYTHON, "-m", "benchmarks.bench_metrics"],
    "precision": [_PYTHON, "-m", "benchmarks.bench_precision"],
    "parameter-servers": [_PYTHON, "-m", "benchmarks.bench_async"],
    "actors": [_PYTHON, "-m", "benchmarks.bench_d4pg"],
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks; returns 1 if one of them could not measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures the figures of docs/benchmarks; needs a quiet machine.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"what to measure, all by default: {', '.join(COMMANDS)}",
    )
    names = parser.parse_args(arguments).names or list(COMMANDS)
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        parser.error(
            f"unknown benchmark {unknown[0]!r}; known are {', '.join(COMMANDS)}"
        )
    failed = []
    for name in names:
        print(f"\n== {name}", flush=True)
        if subprocess.run(COMMANDS[name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
