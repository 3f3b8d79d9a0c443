"""Whether the input pipelines feed faster than the networks eat.

    python -m benchmarks.bench_input [--repeats N]

For each workload at its laptop preset on the embedded digits: batches per second of its
input pipeline alone over steps per second of training alone (synthetic data, one
replica), both on one and the same core, one after the other. A process per repeat, in
reversed order every other time; ratios are paired within a repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from benchmarks.bench_replicator import CORES, paired_ratio, print_figure
from benchmarks.children import run_child

WORKLOADS = ("resnet50", "sngan")
KINDS = ("input", "step")
NUM_STEPS = 20
NUM_WARMUP_STEPS = 3
NUM_BATCHES = 200
# A pipeline that takes less than half of a step's time on a core of its own leaves
# room for its bursts.
TARGET = 2.0


def main() -> None:
    """Measures each workload in processes of its own and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, order = arguments.child
        print(json.dumps(_measure(name, KINDS if order == "0" else KINDS[::-1])))
        return
    for name in WORKLOADS:
        found = [
            run_child(__spec__.name, name, str(repeat % 2))
            for repeat in range(arguments.repeats)
        ]
        for repeat, rates in enumerate(found):
            print(
                f"repeat {repeat} {name:10} input {rates['input']:7.1f} images/s, "
                f"step {rates['step']:7.1f} images/s",
                flush=True,
            )
        ratio = paired_ratio([(rates["input"], rates["step"]) for rates in found])
        print_figure(f"{name}: input / training", ratio, TARGET, is_more_better=True)


def _measure(name: str, kinds: tuple[str, ...]) -> dict[str, float]:
    os.sched_setaffinity(0, CORES[:1])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    measure = {"input": _input_rate, "step": _step_rate}
    return {kind: measure[kind](name) for kind in kinds}


def _program(name: str, data: str) -> Any:
    import importlib

    import replicator
    from workloads.catalog import WORKLOADS as CATALOG

    info = CATALOG[name]
    (preset,) = (p for p in info.presets if p.name == "laptop")
    workload = importlib.import_module(info.module).WORKLOAD
    workload.prepare(data=data)
    return workload.build(
        replicator.create("single", num_replicas=1),
        preset=preset.name,
        data=data,
        per_replica_batch_size=preset.per_replica_batch_size,
        seed=0,
        options={},
    )


def _input_rate(name: str) -> float:
    """Images per second that the pipeline makes when nobody computes."""
    program = _program(name, "digits")
    read = program.batches()
    for _ in range(NUM_WARMUP_STEPS):
        next(read)
    start = time.perf_counter()
    for _ in range(NUM_BATCHES):
        next(read)
    return NUM_BATCHES * program.global_batch_size / (time.perf_counter() - start)


def _step_rate(name: str) -> float:
    """Images per second of training on data that cost nothing."""
    program = _program(name, "synthetic")
    for _ in range(NUM_WARMUP_STEPS):
        program.run()
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        program.run()
    return NUM_STEPS * program.global_batch_size / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
