"""How fast synchronous replication over processes is, as ratios measured in one run.

    python -m benchmarks.bench_multi_worker [--repeats N] [--cases NAME...]

ResNet-50, 64 pixels, 8 examples per replica, synthetic data; two worker processes with
one core and two inter-op threads each, on one machine, joined by TensorFlow's gRPC.
Every repeat runs every case once, in fresh processes, the order reversed in every other
repeat (ABBA); ratios are paired within a repeat. The peer is
``tf.distribute.MultiWorkerMirroredStrategy`` with its ring, run as its documentation
shows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bench_replicator import paired_ratio, print_figure
from replicator.cluster.local_cluster import LocalCluster

CORES = sorted(os.sched_getaffinity(0))[:2]
NUM_STEPS = 20
NUM_WARMUP_STEPS = 3
TIMEOUT_SEC = 240.0

CASES: dict[str, dict[str, Any]] = {
    "multi_worker_in_graph": {"kind": "multi_worker_in_graph"},
    "multi_worker": {"kind": "multi_worker"},
    "tf_multi_worker": {"kind": "tf_multi_worker"},
    "multi_worker_in_graph bfloat16": {
        "kind": "multi_worker_in_graph",
        "compression": "bfloat16",
    },
    "multi_worker bfloat16": {"kind": "multi_worker", "compression": "bfloat16"},
}

PEER = "tf_multi_worker"
FIGURES = [("multi_worker_in_graph", 1.6), ("multi_worker", 1.25)]
COMPRESSED = ("multi_worker_in_graph bfloat16", "multi_worker bfloat16")
COMPRESSED_TARGET = 2.0


def main() -> None:
    """Runs all cases and prints measurements, ratios and targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--num-steps", type=int, default=NUM_STEPS)
    arguments = parser.parse_args()
    print(f"2 worker processes on cores {CORES}, one each", flush=True)
    measured: dict[str, list[float]] = {name: [] for name in arguments.cases}
    for repeat in range(arguments.repeats):
        names = list(arguments.cases)
        for name in names if repeat % 2 == 0 else reversed(names):
            figures = run_case(CASES[name], arguments.num_steps)
            # Throughput of the window, not of its median step.
            rate = 16 / statistics.fmean(figures["step_time_sec"])
            measured[name].append(rate)
            print(
                f"repeat {repeat} {name:31} {rate:6.1f} images/s, "
                f"first step {figures['time_to_first_step_sec']:5.1f} s",
                flush=True,
            )
    if PEER in measured:
        print(f"\nratios over n = {arguments.repeats} paired repeats, 95 % intervals")
        print_ratios(measured)


def print_ratios(measured: dict[str, list[float]]) -> None:
    """Prints each figure that was measured beside its target."""
    for name, target in FIGURES:
        if name in measured:
            estimate = _against_peer(measured, name)
            print_figure(f"throughput: {name} / {PEER}", estimate, target, True)
    compressed = [name for name in COMPRESSED if name in measured]
    if compressed:
        best = max(compressed, key=lambda name: statistics.fmean(measured[name]))
        estimate = _against_peer(measured, best)
        print_figure(f"throughput: {best} / {PEER}", estimate, COMPRESSED_TARGET, True)


def _against_peer(measured: dict[str, list[float]], name: str) -> Any:
    return paired_ratio(list(zip(measured[name], measured[PEER], strict=True)))


def run_case(case: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Runs the two processes of one case; returns what worker 0 measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        config = {
            "compression": None,
            "options": {},
            # One computes while the other takes what arrives.
            "inter_op_threads": 2,
            **case,
            "num_replicas": 2,
            "num_steps": num_steps,
            "num_warmup_steps": NUM_WARMUP_STEPS,
            "result": str(result),
        }
        argv = [sys.executable, "-m", "benchmarks.worker_steps", json.dumps(config)]
        with LocalCluster(
            argv,
            num_workers=2,
            cpusets=[[core] for core in CORES],
            env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            log_dir=folder,
        ) as cluster:
            cluster.check(TIMEOUT_SEC)
        return json.loads(result.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
