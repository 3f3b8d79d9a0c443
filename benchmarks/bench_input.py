"""Whether the input pipelines feed faster than the networks eat.

    python -m benchmarks.bench_input [--repeats N]

For each workload at its laptop preset on the embedded digits: batches per second of its
input pipeline alone over steps per second of training alone (synthetic data, one
replica), both on one and the same core, one after the other. A process per rate, in
reversed order every other repeat; ratios are paired within a repeat.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from benchmarks import runner

WORKLOADS = ("resnet50", "sngan")
NUM_STEPS = 20
NUM_WARMUP_STEPS = 3
NUM_BATCHES = 200
# A pipeline that takes less than half of a step's time on a core of its own leaves
# room for its bursts.
TARGET = 2.0


def main() -> None:
    """Measures each workload in processes of its own and prints the ratios."""
    arguments = runner.make_parser(__doc__, num_repeats=3).parse_args()
    for name in WORKLOADS:
        ways = {
            kind: functools.partial(
                runner.measure,
                measure,
                arguments={"kind": kind, "name": name},
                cores=runner.CORES[:1],
            )
            for kind in ("input", "step")
        }
        found = runner.take_turns(
            ways,
            arguments.num_repeats,
            show=lambda rate: f"{rate:7.1f} images/s",
        )
        runner.print_ratio(
            f"{name}: input / training",
            found["input"],
            found["step"],
            at_least=TARGET,
        )


def measure(kind: str, name: str) -> float:
    """Images per second of the input pipeline, or of the step."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return {"input": _input_rate, "step": _step_rate}[kind](name)


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
