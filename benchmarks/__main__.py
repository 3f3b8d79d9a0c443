"""Runs benchmarks, one after the other: all with `make bench`, or those that are named.

python -m benchmarks [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

_SCRIPTS = {
    "command-line": ("bench_measuring", "--repeats", "7", "--cases", "help", "plan"),
    "trials": ("bench_trials",),
    "report": ("bench_report",),
    "measuring": ("bench_measuring", "--cases", "window", "relay"),
    "client": ("bench_measuring", "--cases", "client"),
    "dispatch": ("bench_dispatch",),
    "fit": (
        *("bench_workloads", "--repeats", "4"),
        *("--cases", "fit", "first, in_graph", "first, tf_mirrored"),
    ),
    "pipeline": ("bench_pipeline",),
    "optimizer": ("bench_sharding", "--cases", "optimizer"),
    "sharding": ("bench_sharding", "--cases", "time", "memory"),
    "replicator": ("bench_replicator",),
    # The same with memory that malloc keeps.
    "replicator-kept": ("bench_replicator", "--allocator", "keep"),
    "workers": ("bench_multi_worker",),
    "input": (
        *("bench_workloads", "--cases", "input, resnet50", "step, resnet50"),
        *("input, sngan", "step, sngan"),
    ),
    "metrics": ("bench_workloads", "--cases", "50,000 examples"),
    "precision": ("bench_workloads", "--cases", "mixed_bfloat16", "float32"),
    "parameter-servers": ("bench_async",),
    "actors": ("bench_d4pg",),
}
COMMANDS = {
    name: [sys.executable, "-m", f"benchmarks.{script}", *options]
    for name, (script, *options) in _SCRIPTS.items()
} | {
    "engine": [
        *(sys.executable, "-m", "pytest", "-q", "-k", "first_step or tiny_step"),
        "tests/benchmarks/micro/bench_steps.py",
    ]
}


def main(arguments: list[str] | None = None) -> int:
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
