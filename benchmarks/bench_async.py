"""How fast asynchronous updates are, as ratios measured in one run.

    python -m benchmarks.bench_async [--repeats N] [--updates N]

A perceptron of three layers on two workers and one parameter server, all on one machine
and more processes than cores. The peer is ``tf.distribute.ParameterServerStrategy``
with Keras' own updates, over the same coordinator, in the same processes. Every repeat
runs a block of updates with each, the order reversed in every other repeat (ABBA);
ratios are paired within a repeat. An update is lost when the optimizer's own count of
updates misses it.
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

STEPS_PER_DISPATCH = (1, 10)
TIMEOUT_SEC = 280.0
TARGET = 1.0


def main() -> None:
    """Runs all blocks and prints measurements, ratios and targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--updates", type=int, default=1000, help="of one block")
    arguments = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    print(f"2 workers, 1 server, 1 chief on {num_cores} cores", flush=True)
    measured = run(arguments.repeats, arguments.updates)
    for name, figures in measured.items():
        rates = figures["updates_per_sec"]
        num_all = arguments.repeats * arguments.updates
        print(
            f"{name:12} {statistics.fmean(rates):7.1f} updates/s "
            f"({min(rates):.1f} to {max(rates):.1f}), "
            f"{sum(figures['num_lost']):.0f} of {num_all} updates lost"
        )
    print(f"\nratios over n = {arguments.repeats} paired repeats, 95 % intervals")
    for num_steps in STEPS_PER_DISPATCH:
        ours, stock = (
            measured[f"{name} k={num_steps}"]["updates_per_sec"]
            for name in ("async", "stock")
        )
        estimate = paired_ratio(list(zip(ours, stock, strict=True)))
        title = f"updates per second, k={num_steps}: async / ParameterServerStrategy"
        print_figure(title, estimate, TARGET, True)


def run(num_repeats: int, num_updates: int) -> dict[str, Any]:
    """Runs one cluster; returns what its chief measured."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        config = {
            "num_repeats": num_repeats,
            "num_updates": num_updates,
            "steps_per_dispatch": STEPS_PER_DISPATCH,
            "result": str(result),
        }
        argv = [sys.executable, "-m", "benchmarks.async_steps", json.dumps(config)]
        with LocalCluster(
            argv,
            num_workers=2,
            num_ps=1,
            has_chief=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            log_dir=folder,
        ) as cluster:
            cluster.check(TIMEOUT_SEC, kinds=["chief"])
        return dict(json.loads(result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
