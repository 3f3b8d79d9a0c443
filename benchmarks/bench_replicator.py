"""How fast the in-graph engine is, as ratios measured in one run.

    python -m benchmarks.bench_replicator [--repeats N] [--cases NAME...]

ResNet-50, 64 pixels, 8 examples per replica, synthetic data, two cores. Every repeat
runs every case once, each in fresh processes, the order reversed in every other repeat
(ABBA), and ratios are paired within a repeat. The *ceiling* is two single-device
programs side by side, pinned to one core each, that never communicate.

With ``--malloc keep`` the C library is told to keep freed memory instead of giving it
back to the kernel. TensorFlow's CPU allocator is plain malloc, so with the defaults
every large temporary costs page faults; programs with many of them (stock Keras
updates) gain a lot, and a comparison that hides this would not be fair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from results.statistics import Estimate, ratio

CORES = sorted(os.sched_getaffinity(0))[:2]
NUM_STEPS = 20
NUM_WARMUP_STEPS = 3

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the most that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}

CASES = {
    "in_graph x2": [{"kind": "in_graph", "num_replicas": 2, "cores": CORES}],
    "tf_mirrored x2": [{"kind": "tf_mirrored", "num_replicas": 2, "cores": CORES}],
    "ceiling x2": [
        {"kind": "single", "num_replicas": 1, "cores": [core]} for core in CORES
    ],
    "in_graph x4": [{"kind": "in_graph", "num_replicas": 4, "cores": CORES}],
    "tf_mirrored x4": [{"kind": "tf_mirrored", "num_replicas": 4, "cores": CORES}],
    # Measured for their start only, so few steps follow.
    "in_graph x8": [
        {"kind": "in_graph", "num_replicas": 8, "cores": CORES, "num_steps": 2}
    ],
    "tf_mirrored x8": [
        {"kind": "tf_mirrored", "num_replicas": 8, "cores": CORES, "num_steps": 2}
    ],
}

FIGURES = [
    # title, metric, numerator, denominator, target, whether more is better
    ("throughput", "examples_per_sec", "in_graph x2", "tf_mirrored x2", 1.25, True),
    ("throughput", "examples_per_sec", "in_graph x2", "ceiling x2", 0.93, True),
    ("throughput", "examples_per_sec", "in_graph x4", "tf_mirrored x4", 1.5, True),
    (
        "time to first step",
        "time_to_first_step_sec",
        "in_graph x4",
        "tf_mirrored x4",
        0.6,
        False,
    ),
    (
        "time to first step",
        "time_to_first_step_sec",
        "in_graph x8",
        "tf_mirrored x8",
        0.5,
        False,
    ),
]


def main() -> None:
    """Runs all cases and prints measurements, ratios and targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--malloc", choices=("default", "keep"), default="default")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    repeats = arguments.repeats
    if arguments.malloc == "keep":
        os.environ.update(KEEP_MEMORY)
    print(f"malloc: {arguments.malloc}; cores {CORES}", flush=True)
    cases = arguments.cases
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in cases if repeat % 2 == 0 else cases[::-1]:
            figures = run_case(CASES[name])
            measured[name].append(figures)
            print(
                f"repeat {repeat} {name:15} "
                f"{figures['examples_per_sec']:6.1f} images/s, "
                f"first step {figures['time_to_first_step_sec']:5.1f} s",
                flush=True,
            )
    print(f"\nratios over n = {repeats} paired repeats, with 95 % intervals")
    for title, metric, first, second, target, is_more_better in FIGURES:
        if first not in measured or second not in measured:
            continue
        pairs = zip(measured[first], measured[second], strict=True)
        estimate = paired_ratio([(a[metric], b[metric]) for a, b in pairs])
        print_figure(f"{title}: {first} / {second}", estimate, target, is_more_better)
    if len(cases) < len(CASES):
        return
    estimate = measure_overhead()
    print_figure(
        "step time: single / plain tf.function loop",
        estimate,
        1.01,
        is_more_better=False,
    )


def run_case(configs: list[dict[str, Any]]) -> dict[str, float]:
    """Runs the processes of one case together; throughput is of all of them."""
    outputs = run_children(
        [
            {"num_steps": NUM_STEPS, "num_warmup_steps": NUM_WARMUP_STEPS, **c}
            for c in configs
        ]
    )
    start = max(output["window"][0] for _, output in outputs)
    end = max(output["window"][1] for _, output in outputs)
    num_examples = sum(
        o["global_batch_size"] * len(o["step_time_sec"]) for _, o in outputs
    )
    return {
        "examples_per_sec": num_examples / (end - start),
        "time_to_first_step_sec": max(
            ready["time_to_first_step_sec"] for ready, _ in outputs
        ),
        "median_step_time_sec": statistics.median(outputs[0][1]["step_time_sec"]),
    }


def measure_overhead() -> Estimate:
    """Compares `single` with a plain loop in one process, block by block."""
    config = {
        "kind": "overhead",
        "cores": CORES[:1],
        "num_steps": 10,
        "num_warmup_steps": NUM_WARMUP_STEPS,
        "num_blocks": 12,
    }
    ((_, output),) = run_children([config])
    return paired_ratio([(b["single"], b["plain"]) for b in output["blocks"]])


def run_children(configs: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Starts children, releases them together when all are warm, reads their lines."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.replicas", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for config in configs
    ]
    ready = [_read(child) for child in children]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [_read(child) for child in children]
    for child in children:
        child.wait()
    return list(zip(ready, outputs, strict=True))


def _read(child: subprocess.Popen[str]) -> Any:
    for line in child.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError(f"a benchmark process ended early with code {child.wait()}")


def paired_ratio(pairs: list[tuple[float, float]]) -> Estimate:
    """Ratio of pairs with its interval; see results.statistics."""
    first = {index: a for index, (a, _) in enumerate(pairs)}
    second = {index: b for index, (_, b) in enumerate(pairs)}
    return ratio(first, second)


def print_figure(
    title: str, estimate: Estimate, target: float, is_more_better: bool
) -> None:
    """Prints one ratio beside its target."""
    reached = estimate.value >= target if is_more_better else estimate.value <= target
    relation = "at least" if is_more_better else "at most"
    interval = (
        f"[{estimate.low:.3f}, {estimate.high:.3f}]"
        if estimate.low is not None
        else "[no interval]"
    )
    print(
        f"{title:55} {estimate.value:.3f} {interval} n = {estimate.n}; target "
        f"{relation} {target}: {'reached' if reached else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
